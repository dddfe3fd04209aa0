"""The server of models: the API of OpenAI over HTTP, in front of engines."""
