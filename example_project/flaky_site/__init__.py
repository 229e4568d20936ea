"""A small web site that throttles, blocks and fails on demand, as its profile says.

``python -m flaky_site profile.json`` serves it; :mod:`flaky_site.profile` documents the profile.
"""
