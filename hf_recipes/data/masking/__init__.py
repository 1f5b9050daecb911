"""From a conversation to tokens, and which of them are learned."""
