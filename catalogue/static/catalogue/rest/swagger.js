// Swagger UI over our own description; requests of a session carry its CSRF token.
const { schema, csrf } = document.getElementById("swagger-ui").dataset;
window.ui = SwaggerUIBundle({
  url: schema,
  dom_id: "#swagger-ui",
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
  deepLinking: true,
  // The validator is somebody else's server.
  validatorUrl: null,
  requestInterceptor: (request) => {
    if (new URL(request.url, location.href).origin === location.origin) request.headers["X-CSRFToken"] = csrf;
    return request;
  },
});
