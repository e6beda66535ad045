"""A client of the debug adapter protocol."""

import json
import socket


class Client:
    """What an editor says to a debug adapter."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        self.stream = self.socket.makefile("rb")
        self.seq = 0
        self.events = []

    def send(self, command, **arguments):
        self.seq += 1
        message = {"seq": self.seq, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(message).encode()
        self.socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        return self.seq

    def receive(self):
        length = 0
        while (line := self.stream.readline().strip()) or not length:
            assert line, "closed"
            if line.lower().startswith(b"content-length"):
                length = int(line.split(b":")[1])
        return json.loads(self.stream.read(length))

    def ask(self, command, **arguments):
        number = self.send(command, **arguments)
        while True:
            message = self.receive()
            if message["type"] == "event":
                self.events.append(message)
            elif message.get("request_seq") == number:
                assert message["success"], message
                return message.get("body") or {}

    def event(self, name):
        while not (found := [e for e in self.events if e["event"] == name]):
            message = self.receive()
            if message["type"] == "event":
                self.events.append(message)
        self.events.remove(found[0])
        return found[0].get("body") or {}

    def attach(self, path=None, line=None):
        """Become the debugger of the process, with a breakpoint at a line of a file if given."""
        capabilities = self.ask("initialize", adapterID="test", pathFormat="path")
        assert capabilities["supportsConfigurationDoneRequest"]
        self.send("attach", justMyCode=False)
        self.event("initialized")
        if path is not None:
            source = {"path": str(path)}
            body = self.ask("setBreakpoints", source=source, breakpoints=[{"line": line}])
            assert body["breakpoints"][0]["verified"]
        self.ask("configurationDone")

    def stop(self):
        """Wait for the next one: what is said of it, and the frame where the thread stands."""
        stopped = self.event("stopped")
        return stopped, self.ask("stackTrace", threadId=stopped["threadId"])["stackFrames"][0]

    def close(self):
        self.stream.close()
        self.socket.close()
