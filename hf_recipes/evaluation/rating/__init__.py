"""A sheet on which people compare answers without knowing whose they are, and what their ratings say."""
