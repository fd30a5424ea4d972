"""Programs of the tests, each in a fork of a process that has imported what they need, which takes longer than most of them.

A line of standard input asks for a program, as JSON: its module, its words, its standard input and more of its environment. A line
of standard output answers: its exit code, what it printed, its errors. Nothing may be computed before: a fork chooses its vectors'
width, and has threads of its own for gradients.
"""

import gc
import json
import os
import runpy
import sys
import traceback
from tempfile import TemporaryFile


def answer(module: str, words: list[str], text: str, environment: dict[str, str]) -> tuple[int, str, str]:
    """Of a program in a process of its own."""
    with TemporaryFile("w+") as pipe, TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        pipe.write(text)
        pipe.seek(0)
        child = os.fork()
        if child == 0:
            for number, file in enumerate((pipe, output, errors)):
                os.dup2(file.fileno(), number)
            os.environ.update(environment)
            become(module, words)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        errors.seek(0)
        return code, output.read(), errors.read()


def become(module: str, words: list[str]) -> None:
    """This process is that program from now on, and ends with it."""
    code, sys.argv, sys.stdin = 1, [module, *words], open(0, closefd=False)  # noqa: SIM115
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    """Answer until the input ends."""
    gc.disable()  # tracing makes many objects, and these programs are short
    gc.freeze()  # who looks for garbage looks among what a program made
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), flush=True)
