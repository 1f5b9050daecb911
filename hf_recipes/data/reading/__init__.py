"""From where data lies, in whatever file and format, to rows in one common form."""
