"""Binary layouts of other systems, byte for byte: what their tooling recorded can be read, and what is written it can read."""
