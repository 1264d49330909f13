"""A run on disk: arrays in safetensors, the rest in JSON, and one rename that makes both valid together.

A checkpoint is a directory. `save` writes the arrays under a new name, then replaces `checkpoint.json`, which
names them and carries their SHA-256. That replacement is the only moment that counts: killed before it, the
last checkpoint is still the one that loads; killed after it, the new one is. Nothing is ever unpickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from .data import CharTokenizer
from .nn import Module
from .nn.pretrained import require_safetensors
from .optim import Optimizer

__all__ = ["CheckpointError", "load", "save"]

MANIFEST = "checkpoint.json"
FORMAT, VERSION = "tinygrad_attn checkpoint", 1
ARRAY = "array"  # {"array": path} in the JSON stands for an array in the other file
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CheckpointError(ValueError):
    """A checkpoint that is damaged, foreign, of another version, or does not fit what it is loaded into."""


def save(directory: str | Path, model: Module | None = None, optimizer: Optimizer | None = None, **parts: Any) -> None:
    """Write a checkpoint, all of it or nothing: `save("run/checkpoint", model, adamw, step=7, sampling=rng)`.

    Of a model its parameters and generators are saved. Further parts may be a Module, an Optimizer, a
    `np.random.Generator`, a CharTokenizer, or plain data: None, numbers, strings, arrays, and lists and dicts
    (with string keys) of these.

    Raises TypeError for anything else, and OSError if the disk is full; the last checkpoint is then intact.
    """
    tensors, directory = require_safetensors(), Path(directory)
    arrays: dict[str, np.ndarray] = {}
    parts = _named(model, optimizer, parts)
    state = {name: _pack(_state_of(part), name, arrays) for name, part in parts.items()}
    blob: bytes = tensors.save(arrays)
    digest = hashlib.sha256(blob).hexdigest()
    arrays_name = f"arrays-{digest[:16]}.safetensors"
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "arrays": arrays_name,
        "sha256 of arrays": digest,
        "sha256 of state": _digest(state),
        "state": state,
    }
    text = json.dumps(manifest, ensure_ascii=False, indent=1).encode(errors="surrogatepass")
    directory.mkdir(parents=True, exist_ok=True)
    try:
        _write(directory / arrays_name, blob)
        _write(directory / MANIFEST, text)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        size = (len(blob) + len(text)) / 1e6
        message = f"no room for a checkpoint of {size:.1f} MB ({error.strerror}); the last one is intact"
        raise OSError(error.errno, message, str(directory)) from error
    finally:
        _sweep(directory)


def load(
    directory: str | Path, model: Module | None = None, optimizer: Optimizer | None = None, **parts: Any
) -> dict[str, Any]:
    """Read a checkpoint: everything as plain data, and into the objects given under the names of `save`.

    `load(path)["step"]` is what was saved; `load(path, model, adamw, sampling=rng)` restores those three too.
    Raises FileNotFoundError where there is no checkpoint, and CheckpointError, saying what differs, if it is
    damaged or does not fit; the objects are then as they were.
    """
    directory = Path(directory)
    state = _read(directory)
    parts = _named(model, optimizer, parts)
    for name, part in parts.items():
        if not isinstance(part, Module | Optimizer | np.random.Generator | CharTokenizer):
            raise TypeError(f"load: can't restore {name} in place, a {type(part).__name__}; use what load returns")
        if name not in state:
            raise CheckpointError(f"{directory}: holds no {name!r}, only {', '.join(state)}")
    before = {name: _state_of(part) for name, part in parts.items()}
    try:
        for name, part in parts.items():
            _restore(part, state[name])
    except (ValueError, KeyError, TypeError) as error:
        for restored, part in parts.items():
            _restore(part, before[restored])
        raise CheckpointError(f"{directory}: {name} does not fit, nothing was loaded\n  {error}") from error
    return state


# ---------------------------------------------------------------------------------------------- objects


def _named(model: Module | None, optimizer: Optimizer | None, parts: dict[str, Any]) -> dict[str, Any]:
    named = {"model": model, "optimizer": optimizer}
    return {name: part for name, part in named.items() if part is not None} | parts


def _state_of(part: Any) -> Any:
    """What of an object goes into a checkpoint; plain data is its own state."""
    match part:
        case Module():
            generators = {name: rng.bit_generator.state for name, rng in part.named_generators()}
            return {"parameters": part.state_dict(), "generators": generators}
        case Optimizer():
            return part.state_dict()
        case np.random.Generator():
            return part.bit_generator.state
        case CharTokenizer():
            return part.vocab
        case _:
            return part


def _restore(part: Any, state: Any) -> None:
    match part:
        case Module():
            part.load_state_dict(state["parameters"])
            for name, rng in part.named_generators():
                if name in state["generators"]:
                    rng.bit_generator.state = state["generators"][name]
        case Optimizer():
            part.load_state_dict(state)
        case np.random.Generator():
            part.bit_generator.state = state
        case CharTokenizer() if part.vocab != state:
            ours, theirs = set(part.vocab), set(state)
            raise ValueError(
                f"the saved vocabulary has {len(theirs)} characters, this one {len(ours)}; only there: "
                f"{''.join(sorted(theirs - ours))!r}, only here: {''.join(sorted(ours - theirs))!r}"
            )


def _pack(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """`value` for JSON: arrays move to `arrays` and leave {"array": path} behind."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case np.ndarray() if value.dtype.kind in "biuf":
            while path in arrays:  # {"a.b": x, "a": {"b": y}}
                path += "'"
            arrays[path] = np.asarray(value, value.dtype.newbyteorder("="), order="C")
            return {ARRAY: path}
        case np.generic() if value.dtype.kind in "biuf":
            return value.item()
        case list() | tuple():
            return [_pack(item, f"{path}.{i}", arrays) for i, item in enumerate(value)]
        case dict() if all(isinstance(key, str) and key != ARRAY for key in value):
            return {key: _pack(item, f"{path}.{key}", arrays) for key, item in value.items()}
    raise TypeError(f"save: can't store {path}, a {type(value).__name__}: {value!r:.80}")


def _unpack(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    match value:
        case {"array": str(path)}:
            return arrays[path]
        case list():
            return [_unpack(item, arrays) for item in value]
        case dict():
            return {key: _unpack(item, arrays) for key, item in value.items()}
    return value


# ---------------------------------------------------------------------------------------------- files


def _write(path: Path, content: bytes) -> None:
    """Replace a file as a whole: temporary file beside it, flushed to the disk, renamed over it."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if os.name == "posix":  # the rename itself reaches the disk with its directory
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _sweep(directory: Path) -> None:
    """Remove array files that no manifest names: of older checkpoints, and of writers that were killed."""
    try:
        keep = json.loads((directory / MANIFEST).read_bytes())["arrays"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for path in directory.glob("arrays-*.safetensors*"):
        if path.name != keep:
            path.unlink(missing_ok=True)


def _read(directory: Path) -> dict[str, Any]:
    """The state in a checkpoint, with every byte of it checked."""
    path = directory / MANIFEST
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, f"no checkpoint here ({MANIFEST} is missing)", str(directory)) from None
    except NotADirectoryError:
        raise CheckpointError(f"{directory}: a checkpoint is a directory, this is a file") from None
    try:
        manifest = json.loads(text)
        version = manifest["version"] if manifest["format"] == FORMAT else None
    except (ValueError, KeyError, TypeError):
        version = None
    if version is None:
        raise CheckpointError(f"{path}: damaged, or not written by tinygrad_attn")
    if version != VERSION:
        raise CheckpointError(f"{path}: has format version {version}, this program reads version {VERSION}")
    blob_path = directory / str(manifest.get("arrays"))
    try:
        blob = blob_path.read_bytes()
    except FileNotFoundError:
        if path.read_bytes() != text:  # replaced while we were reading
            return _read(directory)
        raise CheckpointError(f"{blob_path}: is missing, although {MANIFEST} names it") from None
    if hashlib.sha256(blob).hexdigest() != manifest.get("sha256 of arrays"):
        raise CheckpointError(f"{blob_path}: damaged ({len(blob)} bytes whose checksum is not the recorded one)")
    if _digest(manifest.get("state")) != manifest.get("sha256 of state"):
        raise CheckpointError(f"{path}: damaged (the checksum of its state is not the recorded one)")
    state: dict[str, Any] = _unpack(manifest["state"], require_safetensors().load(blob))
    return state


def _digest(state: Any) -> str:
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()
