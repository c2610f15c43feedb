"""What a pattern in a proxy's settings means, in the form in which people write it.

    path, or folder            as it lies in the repository; `*` stands for anything, slashes too
    left-pad@1.3.0             npm, Python: a version; of images a tag or digest
    Up_Py, up-py==1.0          Python: names in any spelling
    team/app:1.0               images, as clients name them
    com.acme:lib, com.acme:lib:1.0, com.acme.*     Maven

`allow` and `block` become patterns of paths, exceptions of the minimum age patterns of `name` or `name@version`. What nothing could ever
match is refused when it is set: a rule that does nothing looks like one that does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from app.errors import Invalid
from app.repository.formats import FORMATS

_WILD = re.compile(r"[*?\[]")
_SEPARATORS = re.compile(r"[-_.]+")
# Of ranges of versions, which are in no name and no path of these formats.
_NEVER: Mapping[str, str] = {"npm": ":=<>^| ", "pypi": ":=<>^~, ", "maven": "=<>^~, ", "oci": "=<>^~, "}


def paths_of(format_name: str, pattern: str) -> Sequence[str]:
    """The patterns of paths that one of `allow` or `block` stands for."""
    pattern = pattern.lstrip("/") or pattern
    found = _PATHS[format_name](pattern) if format_name in _PATHS else []
    return list(dict.fromkeys([*found, pattern]))


def indexes_of(format_name: str, pattern: str) -> Sequence[str]:
    """What clients read to get there, where it is no folder above: to be allowed with the rest."""
    if format_name != "maven" or pattern.count(":") != 2:
        return []
    return [f"{'/'.join(_module(pattern))}/maven-metadata.xml*"]


def names_of(format_name: str, pattern: str) -> Sequence[str]:
    """The patterns of `name` or `name@version` that an exception stands for."""
    found = _NAMES[format_name](pattern) if format_name in _NAMES else pattern
    return list(dict.fromkeys([found, pattern]))


def check_pattern(format_name: str, setting: str, pattern: str) -> None:
    """Raises Invalid for what could match nothing, with what to write."""
    fault = _fault(format_name, setting, pattern)
    if fault is not None:
        raise Invalid(f"{setting}: {pattern!r} would match nothing here: {fault}", field=f"settings.{setting}")


def _fault(format_name: str, setting: str, pattern: str) -> str | None:
    plain = pattern.replace("==", "@") if format_name == "pypi" else pattern
    if format_name == "oci" and setting == "allow" and _tagged(pattern) is not None:
        return "an image is allowed with all of its tags, since its parts have none; write its name alone"
    if any(each in _NEVER.get(format_name, "") for each in plain):
        return f"write {_FORMS[format_name]}; a range of versions is written with *, such as 1.*"
    if format_name == "maven" and plain.count(":") > 2:
        return f"write {_FORMS['maven']}"
    if format_name == "npm" and not _WILD.search(plain):
        package, _, rest = plain.strip("/").partition("/") if not plain.startswith("@") else _scoped(plain)
        if rest and rest != "-" and not rest.startswith("-/"):
            return f"write {package}@{rest} for that version"
    return None


_FORMS: Mapping[str, str] = {
    "npm": "a name, or name@version",
    "pypi": "a name, or name==version",
    "maven": "group:artifact, group:artifact:version, or a path",
    "oci": "an image's name, or name:tag",
}


def _scoped(pattern: str) -> tuple[str, str, str]:
    scope, name, *rest = [*pattern.strip("/").split("/", 2), ""]
    return f"{scope}/{name}", "/", "".join(rest)


# npm


def _versioned(pattern: str) -> tuple[str, str] | None:
    """Name and version; the `@` that a scope begins with is none."""
    name, at, version = pattern.rpartition("@")
    return (name, version) if at and name and version and "/" not in version else None


def _npm_paths(pattern: str) -> Sequence[str]:
    found = _versioned(pattern)
    if found is None:
        return []
    name, version = found
    file = f"{name}/-/{name.rpartition('/')[2]}-{version}.tgz"
    return [file, *(file + ending for ending in FORMATS["npm"].companions)]


# Python


def _pypi_name(name: str) -> str:
    """One that begins with a wildcard may be the end of a file's name, and stays what it is."""
    return name if _WILD.match(name) else _SEPARATORS.sub("-", name).lower()


def _pypi_versioned(pattern: str) -> tuple[str, str] | None:
    return _versioned(pattern.replace("==", "@"))


def _pypi_paths(pattern: str) -> Sequence[str]:
    found = _pypi_versioned(pattern)
    if found is None:
        project, slash, file = pattern.partition("/")
        return [_pypi_name(project) + slash + file]
    name, version = _pypi_name(found[0]), found[1]
    stem = f"{name}/{''.join(map(_any_spelling, name))}-{version}"
    return [f"{stem}{ending}" for ending in ("-*", ".tar.*", ".zip*", ".tgz*", ".win*")]


def _any_spelling(letter: str) -> str:
    """In a file's name it is that of whoever made the file."""
    if letter == "-":
        return "[-_.]"
    return f"[{letter}{letter.upper()}]" if letter.isalpha() else letter


def _pypi_names(pattern: str) -> str:
    found = _pypi_versioned(pattern)
    return _pypi_name(pattern) if found is None else f"{_pypi_name(found[0])}@{found[1]}"


# Maven


def _module(pattern: str) -> Sequence[str]:
    group, _, rest = pattern.partition(":")
    artifact = rest.partition(":")[0].partition("@")[0]
    return [*group.split("."), artifact]


def _maven_paths(pattern: str) -> Sequence[str]:
    if ":" in pattern:
        version = re.split(r"[:@]", pattern.partition(":")[2])[1:]
        return ["/".join([*_module(pattern), *version])]
    # A group alone; what begins with a wildcard may be the end of a file's name.
    return [] if "/" in pattern or _WILD.match(pattern) else [pattern.replace(".", "/")]


def _maven_names(pattern: str) -> str:
    """What is exempt has no other name than its path."""
    found = _maven_paths(pattern)
    return f"{found[0]}/*" if found else pattern


# Images


def _tagged(pattern: str) -> tuple[str, str] | None:
    if "/manifests/" in pattern or "/blobs/" in pattern:
        return None
    image, at, reference = pattern.partition("@")
    if not at:
        image, at, reference = pattern.rpartition(":")
    return (image, reference) if at and image and reference and "/" not in reference else None


def _oci_paths(pattern: str) -> Sequence[str]:
    found = _tagged(pattern)
    return [] if found is None else [f"{found[0]}/manifests/{found[1]}"]


def _oci_names(pattern: str) -> str:
    found = _tagged(pattern)
    return pattern if found is None else "@".join(found)


_PATHS: Mapping[str, Callable[[str], Sequence[str]]] = {"npm": _npm_paths, "pypi": _pypi_paths, "maven": _maven_paths, "oci": _oci_paths}
_NAMES: Mapping[str, Callable[[str], str]] = {"pypi": _pypi_names, "maven": _maven_names, "oci": _oci_names}
