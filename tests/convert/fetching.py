"""A program that imports models by their names on the Hub: `fetching.py ASKED`, which is JSON.

It is a list of calls, each `[name, run, variables]` with what the environment has besides. Each is made by a copy of this process,
which has not imported the Hub's library yet. For each a line of JSON says its exit code, what it printed, and its errors.
"""

import json
import os
import sys
import tempfile
import traceback
from typing import IO

from heddle.convert import import_model
from heddle.errors import HeddleError


def fetch(name: str, run: str, variables: dict[str, str], streams: list[IO[bytes]]) -> int:
    """The exit code of a copy of this process, which prints the model's family, or why it cannot have it."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        for number, stream in enumerate(streams, start=1):
            os.dup2(stream.fileno(), number)
        os.environ |= variables
        print(import_model(name, run, hub=True)["family"], flush=True)
        code = 0
    except HeddleError as error:
        print(error, flush=True)
        code = 2
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def main() -> None:
    assert "huggingface_hub" not in sys.modules
    for name, run, variables in json.loads(sys.argv[1]):
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            code = fetch(name, run, variables, [out, err])
            outputs = [stream.seek(0) or stream.read().decode() for stream in (out, err)]
        print(json.dumps([code, *outputs]), flush=True)


if __name__ == "__main__":
    main()
