"""The backend process: protocol, requests, life cycle."""
