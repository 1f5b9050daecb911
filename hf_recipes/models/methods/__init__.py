"""What is trained: one method a file, each a settings dataclass and a function that puts it on a base model."""
