"""Mixture of experts: the lecture's numbers, two dispatches, loss terms that add up.

Published models are the witnesses, gradients too: tests/convert/test_parity.py.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree

from heddle.config import GatedConfig, GroupsConfig, MLPConfig, MoEConfig
from heddle.errors import HeddleError
from heddle.nn.activations import SLOPES
from heddle.nn.experts import Experts, at_once
from heddle.nn.feedforward import MLP, Gated
from heddle.nn.layout import Layout
from heddle.nn.moe import MoE, Router, balance_bias
from heddle.nn.output import Routing
from heddle.nn.setting import Setting
from tests import programs
from tests.lectures.golden import Case, load_mlp, same


def row(tokens: Tensor) -> tuple[Tensor, Layout]:
    """One row of tokens, and where they stand."""
    return tokens[None], Layout.whole(1, tokens.shape[0])


def gradients(loss: Tensor, module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Of the input and of every parameter that has one."""
    named = {name: each for name, each in module.named_parameters() if each.requires_grad}
    values = torch.autograd.grad(loss, [x, *named.values()], allow_unused=True)
    return dict(zip(["x", *named], (torch.zeros(()) if each is None else each for each in values), strict=True))


def mixture(dim: int, hidden: int, experts: int, active: int = 2, activation: str = "silu", **options: Any) -> MoE:
    """A mixture by its sizes; `options` are those of the config, and of its experts `gated` and `bias`."""
    kind = "gated" if options.pop("gated", True) else "mlp"
    expert = {"kind": kind, "hidden": hidden, "activation": activation, "bias": options.pop("bias", False)}
    if options.pop("balanced", False):
        options["bias_rate"] = 0.1
    return MoE(MoEConfig.of({"experts": experts, "active": active, "expert": expert, **options}), Setting(dim))


def golden_moe(case: Case, **options: Any) -> MoE:
    """The case's weights; the lecture's X W is stored input first."""
    options = {"active": 2, "shared": 1, "activation": "gelu", "gated": False, **options}
    moe = mixture(4, 3, 4, **options).double()
    with torch.no_grad():
        moe.router.weight.copy_(case.weights["R"])
        moe.experts.up.copy_(case.weights["routed_W_1"].mT)
        moe.experts.down.copy_(case.weights["routed_W_2"].mT)
    if moe.shared is not None:
        load_mlp(moe.shared, {"W_1": case.weights["shared_W_1"][0], "W_2": case.weights["shared_W_2"][0]})
    return moe


def spread(gates: Tensor, choice: Tensor, experts: int) -> Tensor:
    """g_t as the lecture writes it: E numbers per token, 0 where an expert was not chosen."""
    return gates.new_zeros(*gates.shape[:-1], experts).scatter(-1, choice, gates)


def router_of(dim: int, experts: int, active: int = 2, gate: Any = "softmax", **more: Any) -> Router:
    return Router(MoEConfig(experts=experts, active=active, gate=gate, **more), dim)


dispatches = pytest.mark.parametrize("dispatch", ["grouped", "loop"])


@dispatches
@pytest.mark.lecture("L2-69", "L2-71", "L2-74", "L2-75", "L2-76", "D-21", "D-22", "D-51")
def test_the_lectures_example(dispatch: str) -> None:
    case = Case("moe")
    u, layout = row(case.inputs["u"])
    expected = case.outputs
    moe = golden_moe(case, dispatch=dispatch)
    gates, choice, logits = moe.router(u)
    same(logits[0], expected["router_logits"])
    same(moe.router.shares(logits)[0], expected["router_probs"])
    same(moe.router.shares(logits)[0].mean(0), expected["mean_router_prob"])
    assert choice[0].tolist() == expected["top_idx"].tolist()
    same(spread(gates, choice, 4)[0], expected["gates_deck"])
    same(gates[0].sum(-1), expected["gates_deck_row_sums"])
    assert moe.shared is not None
    same(moe.shared(u).hidden[0], expected["shared_output"][None].reshape(3, 4))
    for expert in range(4):
        same(moe.experts.feed(u[0], expert), expected["expert_outputs"].reshape(-1, 3, 4)[expert])
    out, (routing,) = moe(u, layout)
    same(out[0], expected["out_without_skip_deck"])
    same((u + out)[0], expected["h_deck_with_skip"])
    assert routing.terms == 0
    same(routing.load.double() / 3, expected["load_fraction_of_tokens"])
    same(golden_moe(case, shared=0, dispatch=dispatch)(u, layout)[0][0], expected["routed_output_deck"])


@dispatches
@pytest.mark.lecture("L2-71", "D-21")
def test_the_lectures_example_renormalised(dispatch: str) -> None:
    case = Case("moe")
    u, layout = row(case.inputs["u"])
    moe = golden_moe(case, renormalise=True, dispatch=dispatch)
    gates, choice, logits = moe.router(u)
    same(spread(gates, choice, 4)[0], case.outputs["gates_renormalised"])
    first = logits.topk(2).values.softmax(-1)
    torch.testing.assert_close(gates, first, rtol=0, atol=1e-15)
    same((u + moe(u, layout)[0])[0], case.outputs["h_renormalised_with_skip"])
    routed = golden_moe(case, shared=0, renormalise=True, dispatch=dispatch)
    same(routed(u, layout)[0][0], case.outputs["routed_output_renormalised"])


@dispatches
def test_the_lectures_example_with_all_experts(dispatch: str) -> None:
    case = Case("moe")
    u, layout = row(case.inputs["u"])
    moe = golden_moe(case, active=4, dispatch=dispatch)
    same((u + moe(u, layout)[0])[0], case.outputs["dense_all_experts_Kr_equals_Nr"])


@pytest.mark.lecture("D-59")
def test_the_lectures_balance_loss() -> None:
    """Per token and with weight 1 it is the number that is written beside the example."""
    case = Case("moe")
    u, layout = row(case.inputs["u"])
    _, (routing,) = golden_moe(case, balance=1.0)(u, layout)
    same(routing.terms / 3, torch.tensor(case.outputs["balance_loss_not_in_decks_switch_style"], dtype=torch.float64))


@pytest.mark.lecture("L2-68", "C-16")
def test_total_and_active_parameters() -> None:
    with torch.device("meta"):
        moe = mixture(8, 32, 4, 2, "gelu", gated=False, shared=1)
        dense = MLP(MLPConfig(hidden=32, bias=False), Setting(8))
    counts = {name: each.numel() for name, each in moe.named_parameters()}
    routed = counts["experts.up"] + counts["experts.down"]
    assert sum(counts.values()) == 2592
    assert sum(counts.values()) - routed + routed * 2 // 4 == 1568
    assert sum(each.numel() for each in dense.parameters()) == 512


@dispatches
@pytest.mark.parametrize("kind", ["mlp", "gated"])
@pytest.mark.lecture("L2-66")
def test_one_expert_of_one_is_the_dense_layer(kind: str, dispatch: str) -> None:
    options = {"hidden": 10, "activation": "gelu", "bias": True}
    dense: Any = (
        Gated(GatedConfig.of(options), Setting(6)) if kind == "gated" else MLP(MLPConfig.of(options), Setting(6))
    )
    dense.double()
    moe = mixture(6, 10, 1, 1, "gelu", gated=kind == "gated", bias=True, dispatch=dispatch).double()
    with torch.no_grad():
        for name in ("up", "down", "gate")[: 3 if kind == "gated" else 2]:
            getattr(moe.experts, name).copy_(getattr(dense, name).weight[None])
            getattr(moe.experts, f"{name}_bias").copy_(getattr(dense, name).bias[None])
    x = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    out, _ = moe(x, Layout.whole(2, 5))
    torch.testing.assert_close(out, dense(x).hidden, rtol=0, atol=1e-14)
    (ours,) = torch.autograd.grad(out.square().sum(), x)
    (reference,) = torch.autograd.grad(dense(x).hidden.square().sum(), x)
    torch.testing.assert_close(ours, reference, rtol=0, atol=1e-13)


@pytest.mark.lecture("L2-72")
def test_the_router_is_one_matrix() -> None:
    """Of E rows, without a bias; two experts for a token where no number is named, at least one, at most all."""
    assert {name: tuple(each.shape) for name, each in router_of(6, 5).named_parameters()} == {"weight": (5, 6)}
    assert router_of(6, 5).active == MoEConfig(experts=5).active == 2
    assert [MoEConfig(experts=5, active=active).active for active in (1, 5)] == [1, 5]
    for active in (0, 6):
        with pytest.raises(HeddleError, match=r"active"):
            MoEConfig.of({"experts": 5, "active": active})


@pytest.mark.parametrize("gate", ["softmax", "sigmoid"])
@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.lecture("L2-73")
def test_equal_scores_go_to_the_lowest_index(gate: Any, balanced: bool) -> None:
    """Many experts: `topk` takes others from about 17 on."""
    router = router_of(6, 40, 3, gate, bias_rate=0.1 if balanced else 0.0)
    with torch.no_grad():
        router.weight.zero_()
    gates, choice, _ = router(torch.randn(50, 6))
    assert choice.tolist() == [[0, 1, 2]] * 50
    assert torch.equal(gates, torch.full((50, 3), 1 / 40 if gate == "softmax" else 0.5))


@pytest.mark.parametrize("active", [1, 2, 5])
@pytest.mark.lecture("L2-73")
def test_exactly_k_gates_are_not_zero(active: int) -> None:
    gates, choice, _ = router_of(6, 5, active)(torch.randn(30, 6))
    assert (spread(gates, choice, 5).count_nonzero(-1) == active).all()


def test_routing_does_not_depend_on_the_precision_of_the_rest() -> None:
    """bf16 inputs are the same numbers in fp32, so choices and gates are equal to the bit."""
    router = router_of(64, 16, 4)
    x = torch.randn(200, 64, dtype=torch.bfloat16)
    for ours, wide in zip(router(x), router(x.float()), strict=True):
        assert torch.equal(ours, wide)
        assert ours.dtype in (torch.float32, torch.int64)


def test_sigmoid_gates() -> None:
    router = router_of(6, 5, 3, "sigmoid", scale=2.5).double()
    x = torch.randn(7, 6, dtype=torch.float64)
    gates, choice, logits = router(x)
    assert torch.equal(choice, logits.topk(3).indices)
    torch.testing.assert_close(gates, 2.5 * logits.sigmoid().gather(-1, choice), rtol=0, atol=1e-15)
    router.renormalise = True
    torch.testing.assert_close(router(x)[0], gates / gates.sum(-1, keepdim=True) * 2.5, rtol=0, atol=1e-15)
    shares = logits.sigmoid() / logits.sigmoid().sum(-1, keepdim=True)
    torch.testing.assert_close(router.shares(logits), shares, rtol=0, atol=1e-15)


@pytest.mark.parametrize("gate", ["softmax", "sigmoid"])
def test_renormalised_gates_are_finite_for_any_scores(gate: Any) -> None:
    router = router_of(1, 4, 2, gate, renormalise=True)
    with torch.no_grad():
        router.weight.copy_(torch.tensor([[-300.0], [-400.0], [-500.0], [-600.0]]))
    gates, _, _ = router(torch.ones(1, 1))
    torch.testing.assert_close(gates, torch.tensor([[1.0, 0.0]]))
    torch.testing.assert_close(gates.sum().detach(), torch.tensor(1.0))


@pytest.mark.parametrize("gate", ["softmax", "sigmoid"])
def test_a_bias_moves_the_choice_and_never_a_gate(gate: Any) -> None:
    router = router_of(6, 5, 2, gate, bias_rate=0.1)
    x = torch.randn(40, 6)
    _, before, logits = router(x)
    assert torch.equal(before, logits.topk(2).indices)
    assert router.bias is not None
    assert not router.bias.requires_grad
    with torch.no_grad():
        router.bias[3] = 2.0
    gates, choice, _ = router(x)
    assert (choice[:, 0] == 3).all()
    whole = logits.softmax(-1) if gate == "softmax" else logits.sigmoid()
    assert torch.equal(gates, whole.gather(-1, choice))


def test_the_bias_steps_towards_an_even_load() -> None:
    bias = torch.tensor([0.5, 0.0, -0.25, 1.0])
    balance_bias(bias, torch.tensor([9, 1, 5, 5]), 0.125)
    assert bias.tolist() == [0.375, 0.125, -0.25, 1.0]


def test_repeated_steps_of_the_bias_even_out_the_load() -> None:
    moe = mixture(6, 4, 4, 2, bias_rate=0.1)
    x, layout = row(torch.randn(400, 6) + 1)
    assert moe.router.bias is not None
    crowded = int(moe(x, layout).routings[0].load.max())
    for _ in range(300):
        balance_bias(moe.router.bias, moe(x, layout).routings[0].load, 0.002)
    assert moe(x, layout).routings[0].load.max() < 1.2 * 200 < crowded


CASES = [
    {"gated": gated, "bias": bias, "activation": activation}
    for gated, bias, activation in [
        (False, False, "gelu"),
        (False, True, "gelu_tanh"),
        (True, False, "silu"),
        (True, True, "relu_squared"),
        (False, False, "relu"),
        (True, False, "linear"),  # whose output must not be its input, which the gradient needs
    ]
]


@pytest.fixture(params=[False, True], ids=["on a CPU", "in blocks"])
def in_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether experts compute as on a device."""
    if request.param:
        monkeypatch.setattr("heddle.nn.experts.on_a_device", lambda tensor: True)
    return bool(request.param)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(each) for each in case.values()))
def test_the_two_dispatches_agree(case: dict[str, Any], in_blocks: bool) -> None:
    """Values, all gradients and the loss terms, with padding, and with an expert that nobody chose."""
    grouped = mixture(6, 10, 5, 2, balance=0.1, z=0.01, **case).double()
    loop = mixture(6, 10, 5, 2, balance=0.1, z=0.01, dispatch="loop", **case).double()
    with torch.no_grad():
        grouped.router.weight[4] = 0
        grouped.router.weight[:4] = grouped.router.weight[:4].abs()
    loop.load_state_dict(grouped.state_dict())
    layout = Layout.padded((7, 3), 7)
    x = torch.rand(2, 7, 6, dtype=torch.float64).add(0.1).requires_grad_()
    above = torch.randn(2, 7, 6, dtype=torch.float64)
    results = []
    for module in (grouped, loop):
        out, (routing,) = module(x, layout)
        assert routing.load.sum() == 20
        assert routing.load[4] == 0
        results.append((out, routing, gradients((out * above).sum() + routing.terms, module, x)))
    (out, routing, slopes), (out2, routing2, found2) = results
    torch.testing.assert_close(out, out2, rtol=0, atol=1e-14)
    assert torch.equal(routing.load, routing2.load)
    for name in slopes:
        torch.testing.assert_close(slopes[name], found2[name], rtol=0, atol=1e-13, msg=name)
    assert (out[1, 3:] == 0).all()
    with torch.no_grad():
        torch.testing.assert_close(grouped(x, layout)[0], out, rtol=0, atol=1e-14 if in_blocks else 0)


@pytest.mark.parametrize("tokens", [1, 64, 300])
@pytest.mark.parametrize("crowd", ["even", "one expert", "padding"])
def test_blocks_hold_every_pair(tokens: int, crowd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever the tokens choose: outputs and gradients are those of the loop, in fp64, also of bounded experts."""
    torch.manual_seed(tokens)
    bounds: dict[str, Any] = {"limit": 0.3, "plus_one": True, "bias": True}
    grouped, loop = (
        Experts(4, 6, GatedConfig(hidden=10, **bounds), dispatch).double() for dispatch in ("grouped", "loop")
    )
    loop.load_state_dict(grouped.state_dict())
    choice = torch.rand(tokens, 4).argsort(-1)[:, :2]
    if crowd == "one expert":
        choice = torch.stack((torch.full((tokens,), 2), choice[:, 0].where(choice[:, 0] != 2, choice[:, 1])), -1)
    if crowd == "padding":
        choice[tokens // 2 :] = 4
    load, gates = choice.flatten().bincount(minlength=5)[:4], torch.rand(tokens, 2, dtype=torch.float64)
    x, above = torch.randn(tokens, 6, dtype=torch.float64), torch.randn(tokens, 6, dtype=torch.float64)
    monkeypatch.setattr("heddle.nn.experts.on_a_device", lambda tensor: True)
    results = []
    for module in (grouped, loop):
        leaves = [each.clone().requires_grad_() for each in (x, gates)]
        out = module(*leaves, choice, load)
        results.append([out, *torch.autograd.grad((out * above).sum(), [*leaves, *module.parameters()])])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("tokens", [1, 3, 40])  # few enough for copies of the weights, and more
@pytest.mark.parametrize(
    "options", [{}, {"gated": False, "bias": True}, {"bias": True, "limit": 0.7, "plus_one": True}], ids=str
)
def test_few_tokens_at_once_agree_with_the_loop(tokens: int, options: dict[str, Any]) -> None:
    """Tokens of which a choice, or each, is of no expert too."""
    bounds = {name: options[name] for name in ("limit", "plus_one") if name in options}
    config = (GatedConfig if options.get("gated", True) else MLPConfig)(
        hidden=5, bias=options.get("bias", False), **bounds
    )
    experts = Experts(18, 6, config, "loop").double()
    x, gates = torch.randn(tokens, 6).double(), torch.rand(tokens, 2).double()
    choice = torch.rand(tokens, 19).argsort(-1)[:, :2]
    choice[tokens // 2] = torch.tensor([18, 4])
    weights = [experts.up, experts.down, *(() if experts.gate is None else (experts.gate,))]
    biases = [each for each in (experts.up_bias, experts.down_bias, experts.gate_bias) if each is not None]
    with torch.no_grad():
        expected = experts(x, gates, choice, choice.new_zeros(18))
        actual = at_once(x, gates, choice, weights, biases, experts.gating)
    assert torch.allclose(actual, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", list(SLOPES))
def test_slopes_are_those_of_autograd(name: str) -> None:
    from heddle.nn.activations import ACTIVATIONS

    assert SLOPES.keys() == ACTIVATIONS.keys()
    x, above = torch.randn(2, 100, dtype=torch.float64).unbind()
    x.requires_grad_()
    (expected,) = torch.autograd.grad(ACTIVATIONS[name](x), x, above)
    torch.testing.assert_close(SLOPES[name](above, x.detach()), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("bounds", [(None, False), (0.3, False), (0.3, True), (None, True)], ids=str)
def test_gradients_are_those_of_finite_differences(bounds: tuple[float | None, bool]) -> None:
    expert = GatedConfig(hidden=5, activation="gelu", bias=True, limit=bounds[0], plus_one=bounds[1])
    experts = Experts(3, 4, expert).double()
    choice = torch.tensor([[0, 2], [2, 1], [0, 1], [2, 3], [3, 3]])
    load = torch.tensor([2, 2, 3])
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    gates = torch.rand(5, 2, dtype=torch.float64, requires_grad=True)

    def run(x: Tensor, gates: Tensor, *weights: Tensor) -> Tensor:
        named = dict(zip((name for name, _ in experts.named_parameters()), weights, strict=True))
        out: Tensor = torch.func.functional_call(experts, named, (x, gates, choice, load))
        return out

    assert torch.autograd.gradcheck(run, (x, gates, *experts.parameters()))


@pytest.mark.parametrize("dispatch", ["grouped", "loop"])
def test_bounded_experts_are_the_formula(dispatch: Any) -> None:
    """act(min(g, limit)) · (clamp(u, ±limit) + 1), beyond both bounds, with a score bias that decides alone."""
    expert = {"kind": "gated", "hidden": 5, "activation": "quick_gelu", "bias": True, "limit": 0.3, "plus_one": True}
    config = {
        "experts": 3,
        "active": 1,
        "expert": expert,
        "router_bias": True,
        "renormalise": True,
        "dispatch": dispatch,
    }
    moe, layout = MoE(MoEConfig.of(config), Setting(4)).double(), Layout.whole(1, 6)
    with torch.no_grad():
        moe.router.score_bias.copy_(torch.tensor([0.0, 100.0, 0.0]))
    x = torch.randn(1, 6, 4, dtype=torch.float64)
    every = moe.experts
    g = x @ every.gate[1].T + every.gate_bias[1]
    u = x @ every.up[1].T + every.up_bias[1]
    assert (g > 0.3).any()
    assert (u.abs() > 0.3).any()
    hidden = torch.where(g > 0.3, 0.3, g)
    hidden = hidden / (1 + (-1.702 * hidden).exp()) * (torch.where(u.abs() > 0.3, 0.3 * u.sign(), u) + 1)
    expected = hidden @ every.down[1].T + every.down_bias[1]
    out, (routing,) = moe(x, layout)
    torch.testing.assert_close(out, expected)
    assert routing.load.tolist() == [0, 6, 0]


def test_bf16_stays_close_to_float64() -> None:
    moe = mixture(32, 48, 4, 2, renormalise=True).bfloat16()
    moe.router.float()
    exact = mixture(32, 48, 4, 2, renormalise=True).double()
    exact.load_state_dict(moe.state_dict())
    x = torch.randn(1, 64, 32).bfloat16().requires_grad_()
    wide = x.detach().double().requires_grad_()
    layout = Layout.whole(1, 64)
    out, _ = moe(x, layout)
    expected, _ = exact(wide, layout)
    assert out.dtype == torch.bfloat16
    slopes, right = gradients(out.float().sum(), moe, x), gradients(expected.sum(), exact, wide)
    for name, (ours, reference) in {"out": (out, expected), **{n: (slopes[n], right[n]) for n in slopes}}.items():
        error = (ours.double() - reference).norm() / reference.norm()
        assert error < 0.01, f"{name} is off by {error:.4f}"


@dispatches
@pytest.mark.lecture("L2-67")
def test_each_expert_is_given_its_tokens_and_no_others(dispatch: str) -> None:
    """A poisoned expert spoils the tokens that chose it, and only those."""
    moe = mixture(6, 4, 4, 2, dispatch=dispatch)
    x, layout = row(torch.randn(30, 6))
    _, choice, _ = moe.router(x)
    _, (routing,) = moe(x, layout)
    assert routing.load.tolist() == [int((choice == expert).sum()) for expert in range(4)]
    assert routing.load.sum() == 30 * 2
    with torch.no_grad():
        moe.experts.down[1] = torch.nan
    assert torch.equal(moe(x, layout)[0].isnan().any(-1), (choice == 1).any(-1))


@dispatches
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_counts_nowhere(dispatch: str, side: Any) -> None:
    """Values, load, terms and gradients are those of the rows alone."""
    moe = mixture(6, 4, 4, 2, balance=0.5, z=0.1, dispatch=dispatch).double()
    short, long = torch.randn(3, 6, dtype=torch.float64), torch.randn(5, 6, dtype=torch.float64)
    filled = torch.randn(2, 5, 6, dtype=torch.float64)
    inside = slice(0, 3) if side == "right" else slice(2, 5)
    filled[0, inside], filled[1] = short, long
    filled.requires_grad_()
    out, (routing,) = moe(filled, Layout.padded((3, 5), 5, side))
    slopes = gradients(out[0, inside].sum() + out[1].sum() + routing.terms, moe, filled)
    rest = [token for token in range(5) if token not in range(5)[inside]]
    assert (slopes["x"][0, rest] == 0).all()
    load, terms, sums = torch.zeros(4, dtype=torch.long), torch.zeros(()), {}
    for tokens, place in ((short, (0, inside)), (long, (1, slice(None)))):
        x, layout = row(tokens.requires_grad_())
        alone, (each,) = moe(x, layout)
        torch.testing.assert_close(alone[0], out[place], rtol=0, atol=1e-14)
        load, terms = load + each.load, terms + each.terms
        for name, gradient in gradients(alone.sum() + each.terms, moe, tokens).items():
            if name == "x":
                torch.testing.assert_close(gradient, slopes["x"][place], rtol=0, atol=1e-13)
            else:
                sums[name] = sums.get(name, 0) + gradient
    assert torch.equal(load, routing.load)
    torch.testing.assert_close(routing.terms, terms, rtol=0, atol=1e-13)
    for name in slopes.keys() - {"x"}:
        torch.testing.assert_close(slopes[name], sums[name], rtol=0, atol=1e-13)


def test_the_terms_are_the_written_formulas() -> None:
    """By plain loops over one document."""
    moe = mixture(6, 4, 5, 3, balance=0.3, z=0.07).double()
    x, layout = row(torch.randn(11, 6, dtype=torch.float64))
    with torch.no_grad():
        _, choice, logits = moe.router(x)
        _, (routing,) = moe(x, layout)
    chance = logits[0].softmax(-1)
    share = [choice.flatten().tolist().count(expert) / 33 for expert in range(5)]
    balance = 11 * 5 * sum(share[expert] * float(chance[:, expert].sum()) / 11 for expert in range(5))
    z = sum(float(logits[0, t].exp().sum().log()) ** 2 for t in range(11))
    assert float(routing.terms) == pytest.approx(0.3 * balance + 0.07 * z, rel=1e-12)


def test_an_even_router_has_balance_one_per_token() -> None:
    moe = mixture(6, 4, 4, 4, balance=1.0).double()
    _, (routing,) = moe(*row(torch.randn(12, 6, dtype=torch.float64)))
    assert float(routing.terms.detach()) == pytest.approx(12)


def test_terms_without_weights_are_zero_and_do_not_train() -> None:
    _, (routing,) = mixture(6, 4, 4)(*row(torch.randn(3, 6)))
    assert routing.terms.shape == ()
    assert routing.terms.dtype == torch.float32
    assert routing.terms == 0
    assert not routing.terms.requires_grad


@pytest.mark.lecture("L2-75")
def test_shared_experts_side_by_side_are_their_sum() -> None:
    moe = mixture(6, 4, 3, 1, "gelu", shared=2, shared_hidden=5).double()
    assert isinstance(moe.shared, Gated)
    parts = [Gated(GatedConfig(hidden=5, activation="gelu"), Setting(6)).double() for _ in range(2)]
    with torch.no_grad():
        for name, axis in (("up", 0), ("gate", 0), ("down", 1)):
            for part, piece in zip(parts, getattr(moe.shared, name).weight.chunk(2, axis), strict=True):
                getattr(part, name).weight.copy_(piece)
        moe.experts.down.zero_()
    x, layout = row(torch.randn(4, 6, dtype=torch.float64))
    torch.testing.assert_close(moe(x, layout)[0], sum(part(x).hidden for part in parts), rtol=0, atol=1e-15)


@pytest.mark.lecture("L2-76", "D-22")
def test_experts_of_zeros_give_zero_and_no_skip() -> None:
    moe = mixture(6, 4, 4, 2)
    with torch.no_grad():
        moe.experts.down.zero_()
    assert (moe(*row(torch.randn(5, 6)))[0] == 0).all()


@pytest.mark.lecture("D-21")
def test_one_renormalised_gate_teaches_the_router_nothing() -> None:
    for renormalise in (False, True):
        moe = mixture(6, 4, 4, 1, renormalise=renormalise).double()
        x, layout = row(torch.randn(5, 6, dtype=torch.float64, requires_grad=True))
        (gradient,) = torch.autograd.grad(moe(x, layout)[0].square().sum(), moe.router.weight)
        assert bool((gradient == 0).all()) == renormalise


def test_routings_are_trees() -> None:
    routing = Routing(torch.tensor([1, 2]), torch.tensor(0.5))
    doubled = _pytree.tree_map(lambda leaf: leaf * 2, routing)
    assert isinstance(doubled, Routing)
    assert doubled.load.tolist() == [2, 4]
    assert doubled.terms == 1


@pytest.mark.thorough
def test_one_graph_holds_it_whole() -> None:
    programs.traced("nn.graphs_of_experts")


def test_layouts_know_how_many_documents_their_rows_hold() -> None:
    layout = Layout.packed([[2, 1], [3], []], 4)
    leaves, known = _pytree.tree_flatten(layout)
    layouts = [layout, layout.to("meta"), *layout.split(1), _pytree.tree_unflatten(leaves, known)]
    assert [each.documents for each in layouts] == [2] * 6
    assert [each.documents for each in (Layout.whole(2, 3), Layout.padded((1, 2), 2), Layout.packed([[]], 2))] == [
        1
    ] * 3


@pytest.mark.parametrize(("group_by", "expected"), [("best", {2, 3}), ("two", {0, 1})])
def test_experts_come_from_the_best_groups(group_by: Any, expected: set[int]) -> None:
    """Of the gates 0.7, 0.6 | 0.9, 0.1 | 0.2, 0.3 the second group has the best expert, and the first the best two."""
    router = router_of(1, 6, active=2, gate="sigmoid", groups=GroupsConfig(count=3, by=group_by)).double()
    gates = torch.tensor([0.7, 0.6, 0.9, 0.1, 0.2, 0.3], dtype=torch.float64)
    with torch.no_grad():
        router.weight.copy_(gates.logit()[:, None])
    result, choice, _ = router(torch.ones(1, 1, dtype=torch.float64))
    assert set(choice[0].tolist()) == expected
    assert torch.allclose(result[0], gates[choice[0]])
