"""Interpretability for every model, trained or imported, with its fast kernels. Models need no conversion.

- `sites`: named tensors inside a model (`names`), read and replaced by forward hooks.
- `trace`: record named tensors of a forward pass (`trace`).
- `attention`: attention maps for any kernel, mask and length, recomputed row by row (`AttentionPass`).
- `edits`: ablate heads, replace activations, add steering vectors (`edited`, `ablate`, `replace`, `steer`).
- `switches`: W_O, masks, positions, skips and norms, which a pass can be made without (`switches`, `switch_off`).
- `heads`: attention pattern scores of heads (`score_heads`, `find_heads`).
- `lens`: the logit lens (`lens`).
- `affine`, `attribution`: direct logit attribution to heads, feed-forwards and biases (`attribute`).
- `patching`: activation patching between two prompts (`patch`).
- `gradients`: token saliency (`input_gradients`, `integrated_gradients`, `rollout`).
- `probes`: linear probes (`probe`).
- `drawing`, `svg`, `sizes`: architecture diagrams (`draw`, `write_drawing`), parameter treemap, cost by length.
- `readings`: layer and head statistics during training (`take_reading`, `read_readings`).
- `weights`: QK and OV products, nearest tokens, position tables, activation curves.

    traced = trace(model, tokens, "decoder.*.residual_after", attention="*")
    traced.attention["decoder.3.mixer"].weights(heads=2)          # [B 1 T S], sums to 1
    with edited(model, [ablate("decoder.3.mixer.heads", heads=[2])]):
        model(tokens)                                              # without that head
"""

from heddle.look.attention import AttentionPass as AttentionPass
from heddle.look.attribution import Attribution as Attribution
from heddle.look.attribution import attribute as attribute
from heddle.look.drawing import Drawing as Drawing
from heddle.look.drawing import draw as draw
from heddle.look.drawing import to_svg as to_svg
from heddle.look.drawing import write_drawing as write_drawing
from heddle.look.edits import Edit as Edit
from heddle.look.edits import ablate as ablate
from heddle.look.edits import edited as edited
from heddle.look.edits import replace as replace
from heddle.look.edits import steer as steer
from heddle.look.edits import switch_off as switch_off
from heddle.look.gradients import TokenScores as TokenScores
from heddle.look.gradients import input_gradients as input_gradients
from heddle.look.gradients import integrated_gradients as integrated_gradients
from heddle.look.gradients import rollout as rollout
from heddle.look.heads import HeadScores as HeadScores
from heddle.look.heads import find_heads as find_heads
from heddle.look.heads import received as received
from heddle.look.heads import score_heads as score_heads
from heddle.look.heads import strongest as strongest
from heddle.look.lens import Lens as Lens
from heddle.look.lens import lens as lens
from heddle.look.patching import Patching as Patching
from heddle.look.patching import difference_of_logits as difference_of_logits
from heddle.look.patching import patch as patch
from heddle.look.probes import Probe as Probe
from heddle.look.probes import probe as probe
from heddle.look.probes import probe_vectors as probe_vectors
from heddle.look.readings import read_readings as read_readings
from heddle.look.readings import take_reading as take_reading
from heddle.look.sites import names as names
from heddle.look.sizes import costs as costs
from heddle.look.sizes import matrix_text as matrix_text
from heddle.look.sizes import treemap as treemap
from heddle.look.switches import Switch as Switch
from heddle.look.switches import switches as switches
from heddle.look.trace import Trace as Trace
from heddle.look.trace import trace as trace
from heddle.look.weights import activation_curves as activation_curves
from heddle.look.weights import analogy as analogy
from heddle.look.weights import head_products as head_products
from heddle.look.weights import near as near
from heddle.look.weights import position_tables as position_tables

__all__ = [
    "AttentionPass",
    "Attribution",
    "Drawing",
    "Edit",
    "HeadScores",
    "Lens",
    "Patching",
    "Probe",
    "Switch",
    "TokenScores",
    "Trace",
    "ablate",
    "activation_curves",
    "analogy",
    "attribute",
    "costs",
    "difference_of_logits",
    "draw",
    "edited",
    "find_heads",
    "head_products",
    "input_gradients",
    "integrated_gradients",
    "lens",
    "matrix_text",
    "names",
    "near",
    "patch",
    "position_tables",
    "probe",
    "probe_vectors",
    "read_readings",
    "received",
    "replace",
    "rollout",
    "score_heads",
    "steer",
    "strongest",
    "switch_off",
    "switches",
    "take_reading",
    "to_svg",
    "trace",
    "treemap",
    "write_drawing",
]
