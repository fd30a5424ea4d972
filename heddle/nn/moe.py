"""Mixture of experts: a router sends each token through a few of many feed-forwards (L2-67 … L2-76; golden `moe`)."""

from math import sqrt

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.config.layers import GatedConfig, GroupsConfig, MoEConfig
from heddle.nn.experts import Experts
from heddle.nn.feedforward import MLP, Gated
from heddle.nn.layout import Layout
from heddle.nn.numeric import wide_dtype
from heddle.nn.output import Output, Routing
from heddle.nn.setting import Setting


def of_best_groups(scores: Float[Tensor, "*rows E"], groups: GroupsConfig) -> Float[Tensor, "*rows E"]:
    """The scores of experts in a token's best groups, -inf for all others (DeepSeek-AI 2024, 2405.04434, 2.2.2)."""
    grouped = scores.unflatten(-1, (groups.count, -1))
    group_scores = grouped.topk(1 if groups.by == "best" else 2, dim=-1).values.sum(-1)
    best = group_scores.sort(dim=-1, descending=True, stable=True).indices[..., : groups.active]
    chosen = torch.zeros_like(group_scores, dtype=torch.bool).scatter(-1, best, True)
    return grouped.masked_fill(~chosen[..., None], -torch.inf).flatten(-2)


class Router(nn.Module):
    """Scores R x of every expert, the K best of them, and their gates (L2-71, L2-72; D-21).

    Everything is computed in fp32 or wider, for every dtype of x, so that rounding to bf16 cannot change the choice. Ties go
    to the lowest index (L2-73). Gates are the softmax over all experts, or the sigmoid of each score, of which the chosen
    ones are kept unchanged; `renormalise` makes a token's chosen gates sum to 1 (Mixtral, Qwen3); `scale` multiplies them.
    With `groups`, it chooses among the experts of the best groups.
    With `router_bias`, a learned `score_bias` [E] is added to the scores (gpt-oss).
    With `bias_rate` there is a `bias` [E], which gets no gradient: it changes the choice but never a gate (Wang et al. 2024),
    and `balance_bias` updates it.
    """

    def __init__(self, config: MoEConfig, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.experts, dim).uniform_(-1 / sqrt(dim), 1 / sqrt(dim)))
        balanced, biased = config.bias_rate > 0, config.router_bias
        self.bias = nn.Parameter(torch.zeros(config.experts), requires_grad=False) if balanced else None
        self.score_bias = nn.Parameter(torch.zeros(config.experts)) if biased else None
        self.active, self.gate, self.groups = config.active, config.gate, config.groups
        self.renormalise, self.scale = config.renormalise, config.scale

    def forward(
        self, x: Float[Tensor, "*rows D"]
    ) -> tuple[Float[Tensor, "*rows K"], Int[Tensor, "*rows K"], Float[Tensor, "*rows E"]]:
        """The gates of the chosen experts, their indices, best first, and the scores of all experts."""
        wide = wide_dtype(x.dtype)
        logits = F.linear(
            x.to(wide), self.weight.to(wide), None if self.score_bias is None else self.score_bias.to(wide)
        )
        with torch.no_grad():  # without a bias, rank by scores: saturated gates would add ties
            by_gates = self.bias is not None or (self.groups is not None and self.groups.by == "two")
            ranking = self._gates(logits) + (0 if self.bias is None else self.bias) if by_gates else logits
            ranking = ranking if self.groups is None else of_best_groups(ranking, self.groups)
            choice = ranking.sort(dim=-1, descending=True, stable=True).indices[..., : self.active]
        if self.renormalise:  # in log space: the gates' sum may be 0 in fp32
            gates = self._logarithms(logits).gather(-1, choice).softmax(-1)
        else:
            gates = self._gates(logits).gather(-1, choice)
        return gates * self.scale if self.scale != 1 else gates, choice, logits

    def shares(self, logits: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows E"]:
        """The gates of all experts, normalised to sum to 1 per token, as the balance loss uses them."""
        return self._logarithms(logits).softmax(-1)

    def _gates(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1) if self.gate == "softmax" else logits.sigmoid()

    def _logarithms(self, logits: Tensor) -> Tensor:
        """The logarithms of the gates, up to a constant per token."""
        return logits if self.gate == "softmax" else F.logsigmoid(logits)


class MoE(nn.Module):
    """Σ shared(x) + Σ_i g_i · expert_i(x) over the K chosen experts (L2-74 without its u_t, which the block adds: D-22).

    The `shared` experts, which process every token, are one feed-forward `shared` times as wide, which equals their sum
    (L2-75). `shared_gate` multiplies that sum by the sigmoid of a learned score per token (Qwen2-MoE).

    The loss terms are sums over documents; a document is one segment of one row, n tokens long. They are `balance` times
    n · E · Σ_e f_e p_e, with f_e the share of the document's choices that went to expert e and p_e its mean gate before the
    choice, normalised (Fedus et al. 2021, eq. 4; D-59), and `z` times Σ_t logsumexp(scores_t)² (Zoph et al. 2022, eq. 5).
    Packed documents therefore count like separate ones, and padding does not count.
    """

    def __init__(self, config: MoEConfig, setting: Setting) -> None:
        super().__init__()
        dim, expert = setting.dim, config.expert
        self.router = Router(config, dim)
        self.experts = Experts(config.experts, dim, expert, config.dispatch)
        self.shared, self.shared_gate = None, None
        if config.shared:
            wide = expert.model_copy(update={"hidden": config.shared * config.shared_width(dim)})
            self.shared = Gated(wide, setting) if isinstance(wide, GatedConfig) else MLP(wide, setting)
            self.shared_gate = nn.Linear(dim, 1, bias=False) if config.shared_gate else None
        self.balance, self.z, self.bias_rate = config.balance, config.z, config.bias_rate

    def forward(self, x: Float[Tensor, "B T D"], queries: Layout) -> Output:
        gates, choice, logits = self.router(x)
        experts = logits.shape[-1]
        if queries.form != "whole":  # padding goes to no expert
            choice = choice.masked_fill((~queries.real)[..., None], experts)
        chosen = (choice[..., None] == torch.arange(experts, device=x.device)).sum(-2)  # [B, T, E] of 0 and 1
        load = chosen.sum((0, 1))
        out = self.experts(x.flatten(0, 1), gates.flatten(0, 1), choice.flatten(0, 1), load).view_as(x)
        if self.shared is not None:
            shared = self.shared(x, queries).hidden
            out = out + (shared if self.shared_gate is None else self.shared_gate(x).sigmoid() * shared)
        return Output(out, (Routing(load, self._terms(logits, chosen, queries)),))

    def whole(self, counts: Float[Tensor, "B documents E"], layout: Layout) -> Float[Tensor, "B documents E"]:
        """How many choices of each whole document went to each expert, from those of the tokens that are here."""
        return counts

    def _terms(self, logits: Tensor, chosen: Tensor, layout: Layout) -> Tensor:
        terms = logits.new_zeros(())
        if self.balance:
            document = torch.arange(layout.documents, device=logits.device)[:, None]
            member = (layout.segment[:, None, :] == document).to(logits.dtype)  # [B, documents, T]
            counts = self.whole(member @ chosen.to(logits.dtype), layout)  # f_e is counts / (n K), p_e is sums / n
            choices = counts.sum(-1).clamp(min=1)  # n K
            sums = member @ self.router.shares(logits)
            balance = (counts * sums).sum(-1) / choices
            terms = terms + balance.sum() * (self.balance * logits.shape[-1])
        if self.z:
            squares = logits.logsumexp(-1).square()
            terms = terms + squares.masked_fill(~layout.real, 0.0).sum() * self.z
        return terms


@torch.no_grad()
def balance_bias(bias: Float[Tensor, " E"], load: Int[Tensor, " E"], rate: float) -> None:
    """Favour underused experts over crowded ones: bias += rate · sign(mean load - load) (Wang et al. 2024, alg. 1).

    Call it once per step, with the load of the whole batch.
    """
    load = load.to(bias.dtype)
    bias.add_((load.mean() - load).sign(), alpha=rate)
