"""Where a command listens: an address of this machine or, with a key, any other."""

import errno
import ipaddress
import socket

from heddle.errors import HeddleError


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens, before the models are loaded.

    Raises:
        HeddleError: the address cannot be used.
    """
    listening = None
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()
        return listening
    except (OSError, OverflowError) as error:
        if listening is not None:
            listening.close()
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        said = (
            "the port is in use; choose another with --port" if in_use else str(error).partition("] ")[2] or str(error)
        )
        raise HeddleError(f"cannot listen at {host}:{port}: {said}") from None


def address_of(listening: socket.socket) -> str:
    """Host and port, as a URL has them."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
