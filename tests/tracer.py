"""A program: torch and heddle imported once, for programs that trace or compile. Each runs in a fork of this process.

Importing all of it takes ten seconds, longer than most of these programs run. A line of standard input asks for a program, as JSON:
its module, its words, its standard input and more of its environment. A line of standard output answers: its exit code, what it
printed, its errors. Nothing is computed here: a fork chooses its vectors' width, and has threads of its own for gradients.
"""

import gc
import json
import os
import runpy
import sys
import traceback
from tempfile import TemporaryFile

from torch._inductor import compile_fx  # noqa: F401  for those that fork off
from torch.nn import parallel  # noqa: F401

from heddle import generate, train  # noqa: F401
from heddle.model import compiling  # noqa: F401
from tests import graphs, models  # noqa: F401


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


def main() -> None:
    gc.disable()  # tracing makes many objects, and these programs are short
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
