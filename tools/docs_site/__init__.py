"""What the documentation site is made of beside the pages in docs/: pages that are made from the
code itself."""
