"""A topic as a folder of files of JSON lines, of which one takes messages."""
