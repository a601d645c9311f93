"""Sees whether a block executes, unpickles or imports what a file names."""

import sys

EXECUTES = (
    "pickle.find_class",
    "os.system",
    "os.exec",
    "os.spawn",
    "os.posix_spawn",
    "subprocess.Popen",
    "marshal.loads",
)
seen: list[str] = []
watching = [False]
sys.addaudithook(lambda event, _: seen.append(event) if watching[0] and event in EXECUTES else None)


class Watched:
    """Fails if anything was executed, unpickled or imported by a name in NAMES inside of the block."""

    def __enter__(self):
        seen.clear()
        watching[0] = True

    def __exit__(self, *_):
        watching[0] = False
        assert not seen, seen
        assert "antigravity" not in sys.modules
