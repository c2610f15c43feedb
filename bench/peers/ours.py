"""Arkvory's own doors, one for each format, beside the floors of the run."""

from __future__ import annotations

import os
from functools import partial

from bench.client import Step, request, walk
from bench.peers.contestants import PROJECT, Contestant, of_images
from bench.publishing import NPM, PIP, blob_upload, image_push, npm_publish, wheel_upload
from bench.server import House
from bench.small import SIZE

# The format that stands in for those that Arkvory does not have beside a peer's.
PLAIN = "files"


def contestants(place: House, files: int) -> list[Contestant]:
    """Fill it, with a project of so many wheels and a package of so many versions; whatever its database does counts as its own."""
    headers = dict([place.authorization.split(": ", 1)])

    def processes() -> list[int]:
        return place.processes() + place.database_processes()

    def put(name: str, size: int) -> list[Step]:
        return [Step("PUT", f"/raw/private/{name}", headers, os.urandom(size))]

    def post(name: str, size: int) -> list[Step]:
        return [wheel_upload("/pypi/python/", headers, name, "1.0", size)]

    def npm(name: str, size: int) -> list[Step]:
        return [npm_publish("/npm/node", headers, name, size)]

    def push(name: str, size: int) -> list[Step]:
        return blob_upload("images/bench", headers, size)

    image = image_push("images/bench", headers, SIZE)
    walk(place.port, image.steps)
    for repository in ("public", "private"):
        walk(place.port, [Step("PUT", f"/raw/{repository}/small", headers, os.urandom(SIZE))])
    walk(place.port, [wheel_upload("/pypi/python/", headers, PROJECT, f"1.{number}", SIZE) for number in range(files)])
    walk(place.port, [npm_publish("/npm/node", headers, PROJECT, SIZE, f"1.0.{number}") for number in range(files)])
    ask = partial(request, "GET")
    tarball = f"/npm/node/{PROJECT}/-/{PROJECT}-1.0.0.tgz"
    wheel = f"/pypi/python/files/{PROJECT}/{PROJECT}-1.0-py3-none-any.whl"
    ours = partial(Contestant, port=place.port, processes=processes, ours=True)
    page = ask(f"/pypi/python/simple/{PROJECT}/", *PIP)
    return [
        ours("Arkvory: raw, public", PLAIN, file=ask("/raw/public/small"), upload=put),
        ours("Arkvory: raw, private, token", PLAIN, file=ask("/raw/private/small", place.authorization)),
        ours("Arkvory: pypi", "python", file=ask(wheel), page=page, upload=post),
        *of_images(image, ours("Arkvory: oci", "", upload=push)),
        ours("Arkvory: npm", "npm", file=ask(tarball), page=ask(f"/npm/node/{PROJECT}", *NPM), upload=npm),
    ]
