"""The decoder board: a table of decoders and pinned circuits whose every cell can be measured again."""
