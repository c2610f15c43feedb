"""The room of container images and all else that speaks the OCI distribution specification: names, manifests, uploads, scopes, routes."""
