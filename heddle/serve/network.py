"""The listening socket of a server."""

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
    """Open a listening socket. It comes before the models are loaded, so that a port in use is reported at once.

    Raises:
        HeddleError: the address is invalid or in use.
    """
    listener = None
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
        return listener
    except (OSError, OverflowError) as error:
        if listener is not None:
            listener.close()
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = (
            "the port is in use; choose another with --port" if in_use else str(error).partition("] ")[2] or str(error)
        )
        raise HeddleError(f"cannot listen on {host}:{port}: {reason}") from None


def address_of(listener: socket.socket) -> str:
    """HOST:PORT as in a URL."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
