// What screen readers and keyboards need beside the theme's own markup.
document.addEventListener("DOMContentLoaded", () => {
  const name = (query, label) => document.querySelector(query)?.setAttribute("aria-label", label);
  name(".sidebar-drawer", "Pages");
  name(".toc-drawer", "On this page");
  // What scrolls can be reached and moved by keys.
  const reach = () => {
    for (const box of document.querySelectorAll(".highlight pre, .output pre, .output.text_html, .table-wrapper"))
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  };
  reach();
  addEventListener("resize", reach);
});
