"""Arkvory, an artifact repository server.

`create_app` is the table of contents: it builds the parts and registers the rooms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flask import Flask

    from config import Settings

__version__ = "0.1.0"


def create_app(settings: Settings | None = None) -> Flask:
    """The WSGI application. Call it after the fork; connects to nothing until `lifecycle.start` or the first request."""
    from flask import Flask

    from app import api
    from app.http import errors, health, hosts, metrics, paths, reads, shortpath
    from app.http.parts import build_parts
    from app.jobs import lifecycle
    from app.protocols.maven import routes as maven
    from app.protocols.maven.mirroring import Modules
    from app.protocols.maven.upstream import Upstreams as MavenUpstreams
    from app.protocols.npm import routes as npm
    from app.protocols.npm.mirroring import Packages
    from app.protocols.oci import routes as oci
    from app.protocols.oci.mirroring import Images
    from app.protocols.oci.upstream import Registry
    from app.protocols.pypi import routes as pypi
    from app.protocols.pypi.mirroring import Projects
    from app.protocols.pypi.upstream import PythonIndexes
    from app.protocols.raw import routes as raw
    from app.protocols.raw.mirroring import Folders
    from config import Settings as Configuration

    app = Flask("arkvory", static_folder=None)
    paths.route_on_raw_paths(app)
    house = build_parts(settings or Configuration.from_environment())
    app.extensions["arkvory"] = house
    house.fetches.dialects |= {"maven": MavenUpstreams(), "pypi": PythonIndexes()}
    errors.register(app)
    counts = metrics.register(app, house)
    app.register_blueprint(health.blueprint)
    app.register_blueprint(raw.blueprint)
    app.register_blueprint(maven.blueprint)
    app.register_blueprint(npm.blueprint)
    house.fetches.dialects["npm"] = npm.Registry()
    app.register_blueprint(pypi.blueprint)
    app.register_blueprint(oci.blueprint)
    oci.register(app)
    house.fetches.dialects[oci.reads.format] = Registry()
    house.mirrors.guides |= {"raw": Folders(), "maven": Modules(), "npm": Packages(), "pypi": Projects(), "oci": Images()}
    api.register(app)
    addresses = app.extensions["arkvory.addresses"] = reads.Addresses((raw.reads, maven.reads, npm.reads, pypi.reads, oci.reads))
    shortpath.put_before(app, house, addresses, counts.count)
    hosts.put_before(app, house)
    app.extensions["arkvory.lifecycle"] = lifecycle.attach(app, house)
    return app
