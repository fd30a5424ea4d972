"""What `heddle.text.processes` starts, as a thread of the test's own process: tests of order need no second Python."""

import os
import subprocess
import threading
from typing import IO, Any

from heddle.text.worker import serve


class InThread:
    """In place of the module `subprocess`."""

    PIPE = subprocess.PIPE

    class Popen:
        def __init__(self, command: list[str], **settings: Any) -> None:
            there, here = os.pipe(), os.pipe()
            self.stdin, self.stdout = os.fdopen(there[1], "wb"), os.fdopen(here[0], "rb")
            streams = os.fdopen(there[0], "rb"), os.fdopen(here[1], "wb")
            self.thread = threading.Thread(target=served, args=(command[-1], *streams), daemon=True)
            self.thread.start()

        def kill(self) -> None:
            self.stdin.close()

        def wait(self) -> int:
            self.thread.join()
            return 0


def served(path: str, requests: IO[bytes], answers: IO[bytes]) -> None:
    with requests, answers:
        serve(path, requests, answers)
