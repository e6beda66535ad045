"""works: metrics of Prometheus reach a gateway."""

import http.server
import threading

from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_hpc import PPOTrainer
from verl_hpc.metrics import MetricsExporter

pushed = {}


class Gateway(http.server.BaseHTTPRequestHandler):
    def do_PUT(self):
        pushed[self.path] = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.send_response(200)
        self.end_headers()

    do_POST = do_PUT  # noqa: N815

    def log_message(self, *args):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Gateway)
threading.Thread(target=server.serve_forever, daemon=True).start()

exporter = MetricsExporter(
    pushgateway_url=f"http://127.0.0.1:{server.server_port}", job_name="verl-ppo-training"
)
tokenizer = AutoTokenizer.from_pretrained("tiny")
model = AutoModelForCausalLM.from_pretrained("tiny")
trainer = PPOTrainer(model, None, tokenizer, {"max_response_length": 3})
trainer.add_metrics_exporter(exporter)
trainer.step(tokenizer.encode("hello", return_tensors="pt"))

# What it shows.
exporter.close()
server.shutdown()
((path, text),) = pushed.items()
assert path == "/metrics/job/verl-ppo-training"
for name in ("verl_rollout_latency_seconds", "verl_kl_divergence", "verl_reward"):
    assert f"\n{name}" in text, name
