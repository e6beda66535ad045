"""Chat templates of many kinds, a tokenizer for them, and turns of a model in its tokens."""

from hypothesis import strategies as st

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "{% for m in messages %}<|start|>{{ m.role }}<|end|>\n\n{{ m.content | trim }}<|eot|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant<|end|>\n\n{% endif %}"
)
FORGETS = (
    "{% for m in messages %}{% set c = m.content %}"
    "{% if m.role == 'assistant' and not loop.last and '</think>' in c %}"
    "{% set c = c.split('</think>')[-1] %}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ c }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
INSTRUCT = (
    "{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }}</s>"
    "{% else %}[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}"
)
TEMPLATES = {"chatml": CHATML, "llama": LLAMA, "forgets": FORGETS, "instruct": INSTRUCT}
ENDS = {"chatml": "<|im_end|>", "llama": "<|eot|>", "forgets": "<|im_end|>", "instruct": "</s>"}
SPECIAL = sorted({*ENDS.values(), "<|im_start|>", "<|start|>", "<|end|>"})


class Letters:
    """A tokenizer of single letters, and of the special tokens of all templates; a pair of letters
    is one token, too, which encoding prefers and sampling need not."""

    eos_token_id = None
    is_fast = False

    def __init__(self, template):
        self.chat_template = template
        self.all_special_tokens = SPECIAL
        self.names = [*SPECIAL, *(a + b for a in "ab" for b in "ab"), *map(chr, range(10, 127))]
        self.ids = {name: i for i, name in enumerate(self.names)}

    def encode(self, text, add_special_tokens=False):
        found = []
        while text:
            name = max((n for n in self.names if text.startswith(n)), key=len)
            found.append(self.ids[name])
            text = text[len(name) :]
        return found

    def decode(self, ids, skip_special_tokens=False):
        names = [self.names[i] for i in ids]
        return "".join(n for n in names if not (skip_special_tokens and n in SPECIAL))

    def convert_ids_to_tokens(self, index):
        return self.names[index]

    def apply_chat_template(self, messages, add_generation_prompt, tokenize):
        from transformers.utils.chat_template_utils import render_jinja_template

        assert not tokenize
        (found,), _ = render_jinja_template(
            [messages],
            chat_template=self.chat_template,
            add_generation_prompt=add_generation_prompt,
        )
        return found


letters = st.lists(st.sampled_from("ab "), min_size=1, max_size=5).map("".join)


@st.composite
def turns_of(draw, name):
    """Turns of the model, letter by letter, each ended as its template does; and observations."""
    tokenizer = Letters(TEMPLATES[name])
    found = []
    for _ in range(draw(st.integers(1, 4))):
        text = f"x{draw(letters)}x"
        if name == "forgets" and draw(st.booleans()):
            text = f"hm</think>{text}"
        sampled = [tokenizer.ids[letter] for letter in text] + [tokenizer.ids[ENDS[name]]]
        found.append((text, sampled, f"o{draw(letters)}o"))
    return found
