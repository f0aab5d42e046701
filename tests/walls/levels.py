"""The walls that the attempts run against: each turns the agent's command into one that runs inside."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs

from supervisor.agents.catalog import load_catalog
from supervisor.agents.spawning import spawner
from supervisor.agents.walls import walls
from supervisor.agents.walls.enclosure import Enclosure
from supervisor.agents.walls.mounts import Needs
from supervisor.agents.walls.outside import kept, outside
from supervisor.agents.walls.wall import Mechanism
from supervisor.agents.walls.wall import Wall as Kind
from tests.walls.scene import PYTHON, ROOT_USER, Command, Scene, Wall, as_user

MB: Final = 1 << 20

LIMITS: Final = (
    "prlimit",
    "--nproc=200",
    f"--data={128 * MB}",
    f"--fsize={32 * MB}",
    "--nofile=1024",
    "--",
)
"""Below the amounts that the attempts use. Set inside the user namespace, that of processes counts the
agent's alone."""

USER_NAMESPACE: Final = ("--unshare-user",)
PROCESSES: Final = ("--unshare-pid",)
MEMORY: Final = ("--unshare-ipc",)
NEW_SESSION: Final = ("--new-session",)
CAPABILITIES: Final = ("--cap-drop", "ALL")
FILTER: Final = ("filter",)
MASKS: Final = ("masks",)
READ_ONLY: Final = ("read-only",)
"""Parts of a wall, which a test takes away to see attempts succeed."""


@contextlib.contextmanager
def off(scene: Scene, argv: Sequence[str]) -> Iterator[Command]:
    """No wall, and a start that leaves a descriptor open. Ostler's leaves none, nor do those of the walls."""
    yield Command(argv, (scene.left,))


@attrs.frozen
class Walled:
    """A wall as `spawn` makes it, without the parts that are named. `mechanism`: what it is made of; None for
    the best one that its user has."""

    kind: Kind
    without: tuple[tuple[str, ...], ...] = ()
    mechanism: Mechanism | None = None

    @contextlib.contextmanager
    def __call__(self, scene: Scene, argv: Sequence[str]) -> Iterator[Command]:
        enclosure = self._around(scene)
        confinement = enclosure.confinement
        if FILTER in self.without:
            confinement = attrs.evolve(confinement, system_calls=None)
        words = enclosure.command([*LIMITS, *argv])
        for part in self.without:
            if part[0] in words:
                at = words.index(part[0])
                assert tuple(words[at : at + len(part)]) == part
                del words[at : at + len(part)]
        # The scene's user can execute neither the tests' interpreter nor the checkout.
        confining = scene.base / "spawner.py"
        shutil.copy(spawner.__file__, confining)
        command = confinement.command(words)
        assert command[1:5] == ["-I", "-S", spawner.__file__, "confine"]
        # As the spawner does; bubblewrap does it, too.
        session = [] if enclosure.namespaced else ["setsid", "--wait"]
        yield Command([*session, PYTHON, "-I", "-S", str(confining), *command[4:]])

    def _around(self, scene: Scene) -> Enclosure:
        found = outside(scene.state, load_catalog(), {"HOME": str(scene.user_home)})
        if MASKS in self.without:
            found = attrs.evolve(found, hidden=(), logins=())
        needs = Needs(
            agent="demo",
            workspace=scene.workspace,
            own=(scene.home,),
            programs=(scene.install,),
            kept=() if READ_ONLY in self.without else kept(scene.workspace),
        )
        root = scene.user == ROOT_USER
        best = Mechanism.USER_ID if root else Mechanism.NAMESPACES
        made = walls.enclosure(self.kind, self.mechanism or best, found, needs)
        if made.mechanism is Mechanism.LANDLOCK:
            made = attrs.evolve(made, confinement=attrs.evolve(made.confinement, unprivileged=root))
        if PROCESSES in self.without:
            steps = [each for each in made.mounts if not each.target.is_relative_to("/proc")]
            confinement = attrs.evolve(made.confinement, scoped=False)
            made = attrs.evolve(made, mounts=tuple(steps), confinement=confinement)
        return made


LEVELS: Final[Mapping[str, Wall]] = {
    "off": off,
    "guard": Walled(Kind.GUARD),
    "strict": Walled(Kind.STRICT),
    "landlock": Walled(Kind.STRICT, mechanism=Mechanism.LANDLOCK),
}


def obstacle(user: int) -> str | None:
    """Why this user can make no walls here; None if it can."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    made = ["bwrap", *USER_NAMESPACE, *PROCESSES, "--dev-bind", "/", "/", "--proc", "/proc", "true"]
    done = subprocess.run([*as_user(user), *made], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"bubblewrap fails: {done.stderr.strip()}"
