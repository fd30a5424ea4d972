"""Learn the lectures: what is right, what goes wrong, and what it does.

In reading order:

- `definition`: attention, a block and a language model as the lectures define them, step by step.
- `fault`: a known mistake, as other code for some steps; `attention_faults`, `block_faults`, `model_faults`: their tables.
- `faults`: all mistakes, by name; `mixer`: attention that trains, with a mistake if one is named.
- `homework`: what a student writes, and the names of its parameters; `cases`: what it is tried on.
- `sandbox` runs submissions in children of the process `child`, with limits; `learning`: two short trainings of a model.
- `diagnosis`: which mistakes have a submission's numbers; `steps`: what is right and wrong, in words; `grading`: the grade.
- `lesson`: the pages, listed and copied; `notebook`: a page as an .ipynb file; `quiz`: questions with their reasons.
- `exercise`: what a reader writes, and how it is judged; `exercises`: all of them, by name; `early_exercises`: lessons 0 to 6;
  `late_exercises`: lessons 7 to 14; `edges`: which output depends on which token.
- `tasks`: tiny tasks; `training`: a small model learns one in seconds; `expect` guards a lesson's numbers.
"""

from heddle.lessons.fault import Fault as Fault
from heddle.lessons.faults import FAULTS as FAULTS
from heddle.lessons.faults import fault as fault
from heddle.lessons.grading import Grade as Grade
from heddle.lessons.grading import grade as grade

__all__ = ["FAULTS", "Fault", "Grade", "fault", "grade"]
