"""`heddle grade`, `heddle lesson` and `heddle quiz`."""

import json as json_module
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from heddle.cli.options import Json
from heddle.cli.output import bar, console, print_json, table
from heddle.errors import HeddleError, pluralize
from heddle.lessons.grading import files_in, homework, write_csv
from heddle.lessons.grading import grade as grade_files
from heddle.lessons.lesson import lesson as find_lesson
from heddle.lessons.lesson import lessons, standalone
from heddle.lessons.notebook import notebook as to_notebook
from heddle.lessons.quiz import Question, Score, questions_of
from heddle.weights.files import write_file


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


def lesson(number: int | None = None, /, *, notebook: bool = False, json: Json = False) -> None:
    """List the lessons, or copy one into this folder as a notebook.

    A lesson is a page with code to run: text, numbers, a mistake to make, an exercise. The Markdown file opens as a notebook in
    Jupyter with the jupytext extension. Jupyter, VS Code and Colab open an .ipynb file.

    Parameters
    ----------
    number
        The lesson to copy. Without a number, all lessons are listed.
    notebook
        Copy it as an .ipynb file.
    """
    if number is None:
        if notebook:
            raise HeddleError("--notebook copies a lesson: give its number")
        every = lessons()
        if json:
            print_json([each.to_dict() for each in every])
            return
        rows = [[each.number, each.title, each.minutes] for each in every]
        console().print(table(["lesson", "title", "minutes"], rows))
        return
    chosen = find_lesson(number)
    page = standalone(chosen.path.read_text(encoding="utf-8"))
    file = Path(chosen.path.name).with_suffix(".ipynb" if notebook else ".md")
    text = json_module.dumps(to_notebook(page), indent=1, ensure_ascii=False) + "\n" if notebook else page
    write_file(file, text.encode())
    if json:
        print_json({**chosen.to_dict(), "file": str(file)})
    else:
        print(f"{file}: lesson {number}, {chosen.title}, {chosen.minutes} minutes")


def quiz(lesson: int | None = None, /, *, seed: int = 0, json: Json = False) -> None:
    """Ask questions about the lectures, one by one, and say why an answer is wrong.

    Answer with the letter of a choice. Ctrl-D ends the quiz. Answers may also come from a pipe, one per line.

    Parameters
    ----------
    lesson
        Only the questions of this lesson.
    seed
        Another order of the choices.
    """
    questions = [question.shuffled(seed) for question in questions_of(lesson)]
    if json:
        print_json([question.to_dict() for question in questions])
        return
    score = Score()
    try:
        _ask(questions, score)
    except KeyboardInterrupt as stop:
        if type(stop) is not KeyboardInterrupt:  # SIGTERM
            raise
        print()
    if not score.answered:
        print("no question answered")
        return
    print(f"{score.right} of {pluralize(score.answered, 'question')} right")
    titles = {each.number: each.title for each in lessons()}
    for number, count in sorted(score.missed.items()):
        title = f", {titles[number]}" if number in titles else ""
        print(f"read again: lesson {number}{title} ({count} wrong)")


def _ask(questions: Sequence[Question], score: Score) -> None:
    """Ask until the questions or the answers end."""
    interactive = sys.stdin.isatty()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize

    def say(text: str) -> None:
        print(textwrap.fill(text, width))

    for place, question in enumerate(questions, start=1):
        say(f"Question {place} of {len(questions)}: lesson {question.lesson} ({', '.join(question.rows)})")
        say(question.text)
        lettered = question.lettered()
        for letter, choice in lettered.items():
            print(f"  {letter}  {choice.text}")
        answers = _answers("your answer: " if interactive else "")
        if question.choices:
            answer = next((each for each in map(str.lower, answers) if _is_letter(each, question)), None)
        else:
            print("Answer in your own words. It is not counted.")
            answer = next(answers, None)
        if answer is None:
            print()
            return
        if not question.choices:
            say(f"A good answer: {question.model_answer}")
            print()
            continue
        right = lettered[question.letter]
        if not score.add(question, answer):
            say(f"Wrong. {lettered[answer].because}")
        say(f"{'Right.' if answer == question.letter else f'Right is {question.letter}.'} {right.because}")
        print()


def _is_letter(answer: str, question: Question) -> bool:
    """Whether this is a choice; else ask again."""
    letters = list(question.lettered())
    if answer not in letters:
        print(f"answer with {', '.join(letters[:-1])} or {letters[-1]}")
    return answer in letters


def _answers(prompt: str) -> Iterator[str]:
    """Lines of standard input, without surrounding whitespace, until it ends."""
    while True:
        try:
            yield input(prompt).strip()
        except EOFError:
            return
        except UnicodeDecodeError:
            raise HeddleError("standard input is not UTF-8") from None
