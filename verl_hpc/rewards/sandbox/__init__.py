"""Run untrusted programs apart from the rank, for `reward.function: code` and environments with a
code tool.

    Sandbox --socket--> helper --fork--> keeper --exec--> bubblewrap, or the program itself

The helper is a small process that a rank starts before MPI; nothing of MPI, torch or the rank's
memory is in it. It forks a keeper for every program, which sets limits, looks after the program and
ends it. A socket that closes, because the rank is gone or has given up, ends the program.
"""
