"""Saved corrections: LightGBM text files and a card that describes them and where they apply.

A correction is a folder with ``card.json``, ``member0.txt`` .. (the ensemble) and ``failures.txt`` (if failed trials
were seen). Files are only read as data and are compared with the digests on the card; a difference is an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
from collections.abc import Collection
from functools import lru_cache, partial
from pathlib import Path

import msgspec
import numpy as np

from anatune.arguments import check_path
from anatune.core.hardware.files import user_spec_folder
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.decoding import from_json
from anatune.disk_cache import versions_of
from anatune.errors import MissingDependencyError, ModelVersionError, SpecError, UnknownNameError
from anatune.files import OutputKind, check_folder, make_key_check, read_file, reason, replace_folder
from anatune.model.learned.corrected import CorrectedModel
from anatune.model.learned.residual import ResidualModel, ResidualOptions, import_lightgbm
from anatune.resources import data_folder
from anatune.templates import TEMPLATES, get_template
from anatune.templates.base.model import Model

AUTO, NONE = "auto", "none"
"""Names of corrections: the one made for the device, if there is one; the analytical model without correction."""

CALIBRATED = "calibrated"
"""Name that corrections learned by ``anatune hw calibrate`` have after their device and template."""

FORMAT = 1
CARD = "card.json"
_KIND = OutputKind("one of a correction", make_key_check("format", "feature_version", "kernels", "files"))
"""Kind of the card's file, for cards of any version."""
_MOST_BYTES = 64 * 2**20
"""Largest size of a file, bytes."""


class DataSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table or record file that a correction was trained on.

    Attributes
    ----------
    name, licence, source : str
        Name, licence and origin.
    devices, workloads : tuple of str
        Names of the devices and texts of the workloads.
    num_rows, num_failed : int
        Number of rows, and of failed trials among them.
    sha256 : str
        Digest of the file; empty if the data was not a file.
    """

    name: str
    licence: str
    source: str
    devices: tuple[str, ...]
    workloads: tuple[str, ...]
    num_rows: int
    num_failed: int
    sha256: str = ""


class Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The description of a correction, which is stored beside it.

    Attributes
    ----------
    name : str
        Name of the correction.
    kernels : str
        Kernels that it was trained on: "ansor" (kernels like those of anatune's template "cuda"), "autotvm", "clblast",
        "ansor_cpu", "autotvm_cpu", "anatune" (a user's own records) or "calibrated" (loop nests of a calibration).
    template : str
        Template of the schedules: "cuda", "cpu", ...
    devices : tuple of str
        Hardware specs that it is used for; other devices use the analytical model alone.
    vendors : tuple of str
        Vendors for all of whose devices it is used, because it was better on each of their devices that training left
        out.
    data : tuple of DataSource
        Data that it was trained on.
    metrics : dict
        Measure -> value: "plain" and "corrected", leaving out one workload and leaving out one device.
    """

    name: str
    kernels: str
    template: str
    devices: tuple[str, ...]
    vendors: tuple[str, ...]
    data: tuple[DataSource, ...]
    metrics: dict[str, object]
    feature_names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    offset: float
    noise: float
    files: dict[str, str]
    """File name -> SHA-256 of the file."""
    versions: dict[str, str]
    options: ResidualOptions
    feature_version: int = 0
    """`Template.feature_version` of the template; `save_correction` sets it."""
    format: int = FORMAT

    def applies(self, hardware: GpuSpec | CpuSpec, kernels: str) -> bool:
        """Return whether the correction is used for such kernels on the device."""
        return self.kernels == kernels and (hardware.name in self.devices or hardware.vendor in self.vendors)


class SavedCorrection(msgspec.Struct, frozen=True):
    """A card, its fitted model and its folder."""

    card: Card
    model: ResidualModel
    folder: Path


class _CardVersions(msgspec.Struct, frozen=True):
    """The fields that cards of all versions have."""

    format: int
    feature_version: int
    kernels: str
    template: str


def save_correction(folder: Path, card: Card, model: ResidualModel) -> Card:
    """Write a fitted model and its card; return the card with the files' digests.

    Raises
    ------
    ModelVersionError
        The folder cannot be written.
    """
    texts = {f"member{at}.txt": member.model_to_string() for at, member in enumerate(model.members_)}
    if model.failures_ is not None:
        texts["failures.txt"] = model.failures_.model_to_string()
    files = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    card = msgspec.structs.replace(
        card, files=files, feature_names=model.names_, low=tuple(model.low_.tolist()), high=tuple(model.high_.tolist()),
        offset=model.offset_, noise=model.noise_, options=model.options,
        feature_version=get_template(card.template).feature_version,
        versions={"lightgbm": str(import_lightgbm().__version__), "python": platform.python_version()},
    )  # fmt: skip
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        check_correction_folder(folder)
        with replace_folder(folder) as new_folder:
            for name, text in texts.items():
                (new_folder / name).write_bytes(text.encode())
            (new_folder / CARD).write_bytes(msgspec.json.format(msgspec.json.encode(card), indent=1) + b"\n")
    except OSError as error:
        raise ModelVersionError(f"{folder}: {reason(error)}; the correction was not saved") from None
    return card


def check_correction_folder(folder: Path) -> None:
    """Raise OSError if no correction can be written to a folder, or if it holds other files."""
    check_folder(folder, _KIND.what, _list_own_files)


def _list_own_files(folder: Path, names: Collection[str]) -> set[str]:
    """Return the names in a folder that are files of a correction; none if it has no valid card."""
    if not _KIND.knows(folder / CARD):
        return set()
    files = msgspec.json.decode(read_file(folder / CARD))["files"]
    return {CARD, *files} & set(names) if isinstance(files, dict) else set()


def read_card(folder: Path) -> Card:
    """Return the card of a saved correction.

    Raises
    ------
    ModelVersionError
        There is no card, it is damaged, or it was made for another version of anatune's features.
    """
    path = folder / CARD
    try:
        text = read_file(path)
    except OSError as error:
        raise ModelVersionError(
            f"{path}: {reason(error)}, expected the card of a correction; `anatune records train` makes one"
        ) from None
    try:
        versions = from_json(text, _CardVersions)
    except msgspec.DecodeError as error:
        raise ModelVersionError(f"{path}: {error}, expected the card of a correction; train it again") from None
    if versions.template not in TEMPLATES:
        raise ModelVersionError(
            f"{path}: template {versions.template!r}, expected one of {', '.join(TEMPLATES)}; train it again"
        )
    expected = FORMAT, get_template(versions.template).feature_version
    if (versions.format, versions.feature_version) != expected:
        command = "hw calibrate" if versions.kernels == CALIBRATED else "records train"
        raise ModelVersionError(
            f"{path}: format {versions.format}, features {versions.feature_version}, expected format {expected[0]}, "
            f"features {expected[1]}; train it again with this version (`anatune {command}`), or remove its folder"
        )
    try:
        card = from_json(text, Card)
    except msgspec.DecodeError as error:
        raise ModelVersionError(f"{path}: {error}; train it again") from None
    if not len(card.low) == len(card.high) == len(card.feature_names):
        raise ModelVersionError(
            f"{path}: {len(card.low)} and {len(card.high)} limits for {len(card.feature_names)} features; "
            "train it again"
        )
    return card


def load_correction(folder: str | Path) -> SavedCorrection:
    """Read a saved correction.

    Raises
    ------
    ModelVersionError
        A file is missing or differs from the card, or the features are of another version.
    MissingDependencyError
        LightGBM is not installed.
    """
    folder = Path(folder)
    card = read_card(folder)
    lgb = import_lightgbm()
    boosters = {}
    for name, digest in card.files.items():
        path = folder / name
        try:
            data = read_file(path, _MOST_BYTES) if path.parent == folder else b""
        except OSError as error:
            raise ModelVersionError(f"{path}: {reason(error)}, named in {CARD}; train the correction again") from None
        if hashlib.sha256(data).hexdigest() != digest:
            raise ModelVersionError(f"{path}: has another SHA-256 than {CARD} states; train the correction again")
        try:
            boosters[name] = lgb.Booster(model_str=data.decode())
        except (lgb.basic.LightGBMError, UnicodeDecodeError):
            raise ModelVersionError(f"{path}: LightGBM cannot read it; train the correction again") from None
        if boosters[name].num_feature() != len(card.feature_names):
            raise ModelVersionError(
                f"{path}: {boosters[name].num_feature()} features, expected the {len(card.feature_names)} of {CARD}; "
                "train the correction again"
            )
    model = ResidualModel(card.options)
    model.names_ = card.feature_names
    model.low_, model.high_ = np.array(card.low), np.array(card.high)
    model.offset_, model.noise_ = card.offset, card.noise
    model.members_ = [boosters[name] for name in sorted(boosters) if name.startswith("member")]
    model.failures_, model.delta_ = boosters.get("failures.txt"), None
    if not model.members_:
        raise ModelVersionError(f"{folder / CARD}: names no member file; train the correction again")
    return SavedCorrection(card, model, folder)


def _load_cached(folder: Path) -> SavedCorrection:
    """Return the result of `load_correction`, read again when the card changes."""
    return _load_version(folder, (folder / CARD).stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _load_version(folder: Path, _mtime_ns: int) -> SavedCorrection:
    return load_correction(folder)


def digest_of_cards() -> str:
    """Return a digest of all corrections, the user's own and the shipped ones; caches of plans depend on it."""
    digest = hashlib.sha256(versions_of("lightgbm").encode())  # without LightGBM no correction is used
    for folder in (user_correction_folder, partial(data_folder, "models")):
        with contextlib.suppress(SpecError, OSError):
            for path in sorted(folder().glob(f"*/{CARD}")):
                digest.update(path.parent.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def read_shipped_cards() -> dict[Path, Card]:
    """Return folder -> card of all corrections that are shipped with the package."""
    try:
        root = data_folder("models")
    except FileNotFoundError:
        return {}
    # the folder also holds other learned models
    cards = [path for path in sorted(root.glob(f"*/{CARD}")) if b'"kernels"' in path.read_bytes()]
    return {path.parent: read_card(path.parent) for path in cards}


def find_shipped_correction(hardware: GpuSpec | CpuSpec, kernels: str) -> SavedCorrection | None:
    """Return the shipped correction for such kernels on the device, or None.

    A correction made for this device is preferred to one for its vendor. Without LightGBM the result is None.
    """
    fitting = [(folder, card) for folder, card in read_shipped_cards().items() if card.applies(hardware, kernels)]
    fitting.sort(key=lambda found: hardware.name not in found[1].devices)
    try:
        return _load_cached(fitting[0][0]) if fitting else None
    except MissingDependencyError:
        return None


def find_named_correction(name: str | Path) -> SavedCorrection:
    """Return the correction in the folder `name`, or the shipped one of that name.

    Raises
    ------
    UnknownNameError
        There is neither such a folder nor such a name; the message lists the shipped ones.
    ModelVersionError, MissingDependencyError
        As in `load_correction`.
    """
    folder = check_path("correction", name, UnknownNameError)
    if (folder / CARD).is_file():
        return load_correction(folder)
    cards = read_shipped_cards()
    for folder, card in cards.items():
        if card.name == str(name):
            return _load_cached(folder)
    names = ", ".join(card.name for card in cards.values()) or "none are shipped"
    raise UnknownNameError(f"correction {str(name)!r}: expected a folder that contains {CARD}, or one of: {names}")


def user_correction_folder() -> Path:
    """Return the folder of corrections made on this machine, which may not exist."""
    return user_spec_folder().parent / "models"


def find_correction(
    hardware: GpuSpec | CpuSpec, template: str, correction: str | Path = AUTO, *, user_folder: Path | None = None
) -> SavedCorrection | None:
    """Return the correction for anatune's own kernels of a template, or None.

    Parameters
    ----------
    hardware, template
        The device and the template of the schedules.
    correction : "auto", "none", or str or Path
        "auto": the user's own correction for this device (from records, or else from its calibration), or else the
        shipped one, or else none. Otherwise a folder or the name of a shipped correction, for any device it was
        made.

    Raises
    ------
    ModelVersionError, UnknownNameError, MissingDependencyError
        As in `find_named_correction`; without LightGBM "auto" gives None.
    """
    name = str(check_path("correction", correction, UnknownNameError))
    if name == NONE:
        return None
    if name != AUTO:
        return find_named_correction(correction)
    own_folders: list[Path] = []
    with contextlib.suppress(SpecError):  # without a home folder the user has no corrections
        folder = user_folder or user_correction_folder()
        folder_names = (template, f"{template}_{CALIBRATED}")
        own_folders = [folder / f"{hardware.name}_{name}" for name in folder_names]
    for own_folder in own_folders:
        if (own_folder / CARD).is_file():
            try:
                return _load_cached(own_folder)
            except MissingDependencyError:
                return None
    kernels = get_template(template).corrections
    return find_shipped_correction(hardware, kernels) if kernels else None


def apply_correction(model: Model, saved: SavedCorrection | None) -> Model:
    """Return a model with a saved correction, or the model itself if there is none.

    Raises
    ------
    ModelVersionError
        The correction does not fit the model.
    """
    return model if saved is None else CorrectedModel(model, saved.model)
