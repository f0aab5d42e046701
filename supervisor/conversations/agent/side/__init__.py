"""Sessions and processes that are not a turn: side questions, titles, lists of models."""
