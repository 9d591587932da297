"""Programs as YAML files: the document, its fields, places and contents, and its schema."""
