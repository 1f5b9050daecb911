"""torchtune knows no ChatML over a `tokenizer.json`: the few lines it asks of a tokenizer."""

from tokenizers import Tokenizer
from torchtune.data import truncate


class ChatML:
    """Messages → token ids and a mask of those that are not learned."""

    def __init__(self, path, max_seq_len=None):
        self.tokenizer = Tokenizer.from_file(f"{path}/tokenizer.json")
        self.max_seq_len = max_seq_len
        self.bos_id = self.tokenizer.token_to_id("<|im_start|>")
        self.pad_id = self.eos_id = self.tokenizer.token_to_id("<|im_end|>")
        self.vocab_size = self.tokenizer.get_vocab_size()
        self.stop_tokens = [self.eos_id]

    def encode(self, text, **_):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids, **_):
        return self.tokenizer.decode(ids)

    def tokenize_messages(self, messages, **_):
        tokens, mask = [], []
        for message in messages:
            head = self.encode(f"<|im_start|>{message.role}\n")
            body = self.encode(f"{message.text_content}<|im_end|>")
            end = self.encode("\n")
            tokens += head + body + end
            mask += [True] * len(head) + [message.masked] * len(body) + [True] * len(end)
        if self.max_seq_len:
            return truncate(tokens, self.max_seq_len), truncate(mask, self.max_seq_len)
        return tokens, mask

    def __call__(self, sample, inference=False):
        sample["tokens"], sample["mask"] = self.tokenize_messages(sample.pop("messages"))
        return sample


def chatml_tokenizer(path, max_seq_len=None):
    """What the configuration names."""
    return ChatML(path, max_seq_len)
