// Browsers refuse workers and requests to a page that was opened from a folder. This worker of MkDocs's search lives in
// the page: search_index.js, which the build writes, has brought the index, and the first query reads it.
window.Worker = class {
  postMessage({ query }) {
    const { config, docs } = search_index;
    if (query === undefined) {
      setTimeout(() => [{ config }, { allowSearch: true }].forEach((data) => this.onmessage({ data })));
      return;
    }
    this.index ??= lunr(function () {
      this.ref("location");
      this.field("title");
      this.field("text");
      docs.forEach((page) => this.add(page));
    });
    this.documents ??= new Map(docs.map((page) => [page.location, page]));
    const results = this.index.search(query).map(({ ref }) => this.documents.get(ref));
    this.onmessage({ data: { results: results.map((page) => ({ ...page, summary: page.text.substring(0, 200) })) } });
  }
};
