"""Built-in reward functions, one a file; the file's name is that of the function.

A file has a function of its own name, which is called as a user's is and takes reward.options as
keyword arguments; or a section `Options`, and `make(options)`, which returns such a function.

A file may also have `DATA_SOURCES`, patterns of the data_source of rows that function auto gives
it, and `CALLED_BY_THE_RANK = True`, if it has many responses under way by itself and
needs no runtime.reward_processes.
"""
