"""Make `.venv` from a lock file: called by `./ottla` and `./test` when their stamp is stale.

In: the name of a lock in this folder (`run` or `test`). Out: `.venv` with exactly the locked versions and this checkout installed
editable, and the stamp `.venv/NAME.stamp`, written last, so that an interrupted set-up is simply done again. Any failure is one
sentence on standard error and exit 1; pip's own words are kept in `.venv/setup.log`.

Only the standard library is used, since this runs before anything is installed. Two first uses at once wait for each other.
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "setup.log"

# What pip prints when nothing answers at the other end, as opposed to a package that does not fit this machine.
NETWORK = (
    "NewConnectionError",
    "ConnectTimeout",
    "ReadTimeout",
    "ConnectionError",
    "Max retries",
    "name resolution",
    "Connection refused",
    "Connection broken",
    "Network is unreachable",
    "No route to host",
    "ProxyError",
    "SSLError",
)


def stamp_text(lock_name: str) -> bytes:
    """What `./ottla` compares with the stamp: the place, the lock, the project's own declaration."""
    lock = ROOT / "requirements" / f"{lock_name}.lock"
    return os.fsencode(ROOT) + b"\n" + lock.read_bytes() + (ROOT / "pyproject.toml").read_bytes()


def pins(lock_name: str) -> "set[str]":
    """The versions that a lock names."""
    lines = (ROOT / "requirements" / f"{lock_name}.lock").read_text().splitlines()
    return {line.split()[0] for line in lines if "==" in line}


def fail(sentence: str) -> None:
    sys.stderr.write(f"ottla: {sentence}\n")
    sys.exit(1)


def run(arguments: "list[str]") -> "tuple[int, str]":
    done = subprocess.run(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    text = done.stdout.decode(errors="replace")
    if VENV.is_dir():
        with LOG.open("a") as log:
            log.write(f"$ {' '.join(arguments)}\n{text}\n")
    return done.returncode, text


def make_venv() -> None:
    try:
        import ensurepip
        import venv
    except ImportError:
        ensurepip = venv = None
    if ensurepip is None or venv is None:
        fail(
            f"the Python at {sys.executable} lacks venv or ensurepip; install them (on Debian or Ubuntu: the package python3-venv)."
        )
    code, text = run([sys.executable, "-m", "venv", "--clear", str(VENV)])
    if code != 0:
        fail(f"could not make a virtual environment in {VENV}: {last_line(text)}")


def pip(*arguments: str) -> None:
    command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "2", *arguments]
    code, text = run(command)
    if code == 0:
        return
    if any(sign in text for sign in NETWORK):
        fail(f"the package registry could not be reached, so the dependencies could not be installed (details in {LOG}).")
    fail(f"the dependencies could not be installed: {last_line(text)} (details in {LOG})")


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or ["no reason was given"])[-1]


def usable() -> bool:
    """An existing environment is kept if its interpreter still runs and is the version we were started with."""
    if not PYTHON.exists():
        return False
    code, text = run([str(PYTHON), "-c", "import pip, sys; print(sys.version_info[:2])"])
    return code == 0 and text.strip() == str(tuple(sys.version_info[:2]))


def main(lock_name: str) -> None:
    with (ROOT / ".venv.lock").open("w") as door:
        fcntl.flock(door, fcntl.LOCK_EX)
        stamp = VENV / f"{lock_name}.stamp"
        if stamp.exists() and stamp.read_bytes() == stamp_text(lock_name):
            return
        sys.stderr.write("ottla: setting up .venv (first use, or the lock has changed) ...\n")
        if not usable():
            make_venv()
        pip("--require-hashes", "-r", str(ROOT / "requirements" / f"{lock_name}.lock"))
        pip("--no-deps", "--no-build-isolation", "--editable", str(ROOT))
        for name in ("run", "test", "spark"):
            if pins(name) <= pins(lock_name):  # a larger lock serves a smaller one as well
                (VENV / f"{name}.stamp").write_bytes(stamp_text(name))


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except OSError as error:
        fail(f"could not set up {VENV}: {error.strerror or error}.")
    except KeyboardInterrupt:
        fail("set-up was interrupted; run the command again to continue.")
