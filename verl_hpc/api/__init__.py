"""The names that tutorials of verl teach, over the rooms below (docs/python_api.md).

Importing this package imports none of them: `verl_hpc.NAME` does, when it is asked for.
"""
