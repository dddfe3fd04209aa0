"""The API of Anthropic, `/v1/messages`: its requests as chats, and its answers."""
