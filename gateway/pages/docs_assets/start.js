// Starts Swagger UI on this server's own description. Nothing is asked of any other server, and a key that is entered
// ("Authorize") is forgotten when the page is left.
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  docExpansion: "none",
  defaultModelsExpandDepth: 0,
  displayRequestDuration: true,
  filter: true,
  persistAuthorization: false,
  queryConfigEnabled: false,
  validatorUrl: null,
});
