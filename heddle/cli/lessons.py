"""`heddle grade`."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from heddle.cli.options import Json
from heddle.cli.output import bar, console, print_json
from heddle.errors import HeddleError
from heddle.lessons.grading import files_in, homework, write_csv
from heddle.lessons.grading import grade as grade_files


def grade(
    part: str,
    file: Path | None = None,
    /,
    *,
    template: bool = False,
    train: bool = False,
    all: Path | None = None,
    csv: Annotated[Path | None, Parameter(help="With --all: write a row for each file to this table.")] = None,
    seed: int = 0,
    json: Json = False,
) -> None:
    """Grade homework: attention, a block or a model that you wrote, and what is wrong with it.

    A file is code: it runs with your rights, in a process with limits (20 seconds, 2 GiB). Its numbers are compared with the
    definition's in float64; wrong ones are compared with what known mistakes compute. The exit code is 0 if everything is right,
    1 if something is wrong, and 2 if the file cannot be used.

    Parameters
    ----------
    part
        attention, block or model.
    file
        A Python file with the class CausalSelfAttention, Block or LanguageModel.
    template
        Print a file to start from, with the bodies left out.
    train
        Also train the model for a minute: on random tokens, which shows a leak, and on reversing six digits.
    all
        Grade every Python file of this folder.
    seed
        Seed of the inputs and weights.
    """
    if template:
        if file or train or all or csv or seed or json:
            raise HeddleError("--template only prints a file to start from: leave out the other options")
        print(homework(part).template, end="")
        return
    if (file is None) == (all is None):
        raise HeddleError("name a file, or a folder with --all; --template prints a file to start from")
    if csv is not None and all is None:
        raise HeddleError("--csv is a table of many files: name their folder with --all")
    if csv is not None and not csv.absolute().parent.is_dir():  # before anything is graded
        raise HeddleError(f"--csv {csv}: its folder does not exist")
    out = console(json)
    files = files_in(all) if all is not None else [Path(str(file))]
    grades = []
    with bar(out, "grading") as done:
        for each in grade_files(part, files, seed, train):
            grades.append(each)
            done(len(grades), len(files))
            if not json:
                out.print(str(each) if all is None else each.line)
    if csv is not None:
        write_csv(grades, csv)
    if json:
        print_json(grades[0].to_dict() if all is None else [each.to_dict() for each in grades])
    if code := max(each.exit_code for each in grades):
        sys.exit(code)
