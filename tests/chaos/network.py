"""A network namespace with one cable to this machine, which can be pulled: needs root and the program ip.

this machine  fphN  10.203.x.y  ──── cable ────  10.203.x.(y+1)  fppN  namespace
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass


class NetworkUnavailable(Exception):
    """No namespace can be made here; the text says why."""


@dataclass(frozen=True, slots=True)
class Cable:
    """``host`` is the address at this end, ``namespace`` the name of the other."""

    namespace: str
    host: str
    device: str

    @property
    def entrance(self) -> list[str]:
        """What comes before a command that is to run at the other end."""
        return [_program(), "netns", "exec", self.namespace]

    def has_signal(self) -> bool:
        """Whether the other end sees this one."""
        return "LOWER_UP" in _ip("-n", self.namespace, "link", "show", "type", "veth")

    def pull(self) -> None:
        _ip("link", "set", self.device, "down")

    def plug_in(self) -> None:
        _ip("link", "set", self.device, "up")

    def remove(self) -> None:
        """Remove the namespace and the cable; what is gone already is no error."""
        # The kernel takes its time to clear a namespace, and the cable would stay as long.
        for arguments in (("link", "delete", self.device), ("netns", "delete", self.namespace)):
            with suppress(NetworkUnavailable):
                _ip(*arguments)


@contextmanager
def cabled_namespace() -> Iterator[Cable]:
    """Make a namespace with its cable, and remove both. Raises NetworkUnavailable."""
    if os.geteuid() != 0:
        raise NetworkUnavailable("a network namespace needs root")
    number = os.getpid()
    # One block of four addresses for each process number, as far as they go.
    block = number % 2**14 * 4
    prefix = f"10.203.{block // 256}"
    host, peer = f"{prefix}.{block % 256 + 1}", f"{prefix}.{block % 256 + 2}"
    cable = Cable(f"fencepost-chaos-{number}", host, f"fph{number}")
    far_end = f"fpp{number}"
    inside = ("-n", cable.namespace)
    _ip("netns", "add", cable.namespace)
    try:
        _ip("link", "add", cable.device, "type", "veth", "peer", "name", far_end, "netns", cable.namespace)
        _ip("address", "add", f"{host}/30", "dev", cable.device)
        _ip("link", "set", cable.device, "up")
        _ip(*inside, "address", "add", f"{peer}/30", "dev", far_end)
        _ip(*inside, "link", "set", far_end, "up")
        _ip(*inside, "link", "set", "lo", "up")
        yield cable
    finally:
        cable.remove()


def _ip(*arguments: str) -> str:
    done = subprocess.run([_program(), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NetworkUnavailable(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _program() -> str:
    # It lives where only root looks.
    found = shutil.which("ip", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))
    if found is None:
        raise NetworkUnavailable("there is no program ip; .ci/packages installs it")
    return found
