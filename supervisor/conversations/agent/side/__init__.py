"""Sessions and processes outside turns: side questions, titles, lists of models."""
