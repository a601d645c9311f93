"""Starts the federation for real on this machine: a SuperLink, a SuperNode for each party, and the app; all of them
separate processes that talk over loopback, without TLS. Ends when the server has written its result, and prints it.

Run: python examples/federation/deploy_locally.py OUT [--parties 3] [--run-config 'model="linear" rounds=2']

OUT gets the result, the server's state, each party's ledger and the logs. Needs pip install '.[federated]'.
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CONFIG = '[superlink]\ndefault = "loopback"\n\n[superlink.loopback]\naddress = "{}"\ninsecure = true\n'


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def answers(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def wait(until: "Path | int", seconds: float, processes: list[subprocess.Popen[bytes]]) -> None:
    """For a file, or a port that answers. Raises RuntimeError where it does not come, or a process has failed."""
    end = time.monotonic() + seconds
    while not (answers(until) if isinstance(until, int) else until.exists()):
        failed = [process.args for process in processes if process.poll() not in (None, 0)]
        if failed or time.monotonic() > end:
            raise RuntimeError(f"Waited for {until} in vain; failed: {failed}. The logs beside the result say why.")
        time.sleep(0.2)


def stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ends the processes, and whatever they started: each leads a group of its own."""
    for sign in (15, 9):
        for process in reversed(processes):
            try:
                os.killpg(process.pid, sign)
            except ProcessLookupError:
                continue
        time.sleep(1.0)
    for process in processes:
        process.wait()


def deploy(out: Path, parties: int, run_config: str = "", seconds: float = 300.0) -> str:
    """The text of the result."""
    home, result = out / "flower", out / "result.json"
    home.mkdir(parents=True, exist_ok=True)
    result.unlink(missing_ok=True)
    app = out / "app"
    shutil.copytree(HERE, app, dirs_exist_ok=True, ignore=shutil.ignore_patterns("deploy_locally.py", "__pycache__"))
    link, *nodes = free_ports(1 + parties)
    (home / "config.toml").write_text(CONFIG.format(f"127.0.0.1:{link}"))
    binaries = Path(sys.executable).parent
    environment = os.environ | {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0"}
    environment["PATH"] = f"{binaries}{os.pathsep}{environment['PATH']}"
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, *command: str) -> None:
        with open(out / f"{name}.log", "wb") as log:
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True))

    try:
        start(
            "link", "flower-superlink", "--insecure", "--port", str(link), "--disable-runtime-dependency-installation"
        )
        wait(link, 60.0, processes)
        for number, port in enumerate(nodes):
            config = f'partition-id={number} folder="{out}"'
            address = ("--insecure", "--superlink", f"127.0.0.1:{link}", "--port", str(port))
            start(f"node-{number}", "flower-supernode", *address, "--node-config", config)
        config = f'parties={parties} folder="{out}" {run_config}'
        start("app", "flwr", "run", str(app), "loopback", "--run-config", config)
        wait(result, seconds, processes)
    finally:
        stop(processes)
    return result.read_text()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--parties", type=int, default=3)
    parser.add_argument("--run-config", default="")
    arguments = parser.parse_args()
    print(deploy(arguments.out.resolve(), arguments.parties, arguments.run_config), end="")
