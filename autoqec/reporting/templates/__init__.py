"""The page's parts; a package, so that an installed copy carries them."""
