"""The API of OpenAI for responses, `/v1/responses`: its requests as chats, and its answers."""
