"""What mpiexec starts as a rank of the MPI tier: it stands in for a fork of `worlds`."""

import json
import os
import socket
import sys

DONE = b"done"
MESSAGE_BYTES = 1 << 16


def main() -> None:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect("\0" + sys.argv[1])
    environment = json.dumps(dict(os.environ)).encode()
    assert len(environment) < MESSAGE_BYTES
    socket.send_fds(line, [environment], [0, 1, 2, int(os.environ["PMI_FD"])])
    sys.exit(line.recv(len(DONE)) != DONE)


if __name__ == "__main__":
    main()
