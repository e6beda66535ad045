"""Trackers that log finished steps, one a file: settings, package and sink of each.

Offline runs need no network: they are directories that the tracker's own `sync` uploads.
"""
