// What stands in each panel as it was drawn, and what Grafana's registries do not know of it.
import {
  FieldColorModeId, FieldType, colorManipulator, getFieldDisplayName, getValueFormats, standardTransformersRegistry,
} from '@grafana/data';
import { SceneGridRow, VizPanel, sceneGraph } from '@grafana/scenes';

const DONE = new Set(['Done', 'Error']);
const UNPAINTED = new Set(['rgba(0, 0, 0, 0)', 'rgb(24, 27, 31)']); // a panel's background
const SLACK = 1; // pixels
const SEEN = 2; // what is for readers aloud only is smaller

export const panelsOf = (scene) => sceneGraph.findAllObjects(scene, (one) => one instanceof VizPanel).filter(shown);
const shown = (panel) => panel.isActive;
const dataOf = (panel) => sceneGraph.getData(panel).state.data;

export function settled(scene) {
  const panels = panelsOf(scene);
  return document.fonts.status === 'loaded' && panels.length > 0
    && panels.every((panel) => DONE.has(dataOf(panel)?.state));
}

export function expand(scene) {
  const rows = sceneGraph.findAllObjects(scene, (one) => one instanceof SceneGridRow);
  rows.filter((row) => row.state.isCollapsed).forEach((row) => row.onCollapseToggle());
}

export function report(job, scene, plugins, theme) {
  const source = new Map(flat(job.board.panels).map((panel) => [`panel-${panel.id}`, panel]));
  return {
    title: document.querySelector('h1').innerText,
    rows: job.board.panels.filter((one) => one.type === 'row').map(({ title, collapsed }) => ({ title, collapsed })),
    variables: Object.fromEntries(scene.state.$variables.state.variables.map((one) => [one.state.name, one.getValueText?.() ?? String(one.getValue())])),
    panels: panelsOf(scene).map((panel) => told(panel, source.get(panel.state.key), plugins, theme)),
  };
}

const flat = (panels) => panels.flatMap((one) => [one, ...(one.panels ?? [])]).filter(({ type }) => type !== 'row');

function told(panel, model, plugins, theme) {
  const element = document.querySelector(`[data-viz-panel-key="${panel.state.key}"]`);
  const data = dataOf(panel);
  const { series: frames } = panel.applyFieldConfig(data);
  const box = element.getBoundingClientRect();
  const interpolated = (text) => sceneGraph.interpolate(panel, text);
  return {
    id: model.id, title: panel.state.title, type: model.type, top: box.top, bottom: box.bottom, text: element.innerText,
    errors: [data.error, ...(data.errors ?? [])].filter(Boolean).map((one) => one.message),
    empty: Boolean(element.querySelector('[data-nothing]')),
    unknown: [...unknown(model, plugins.get(model.type))],
    ...fields(model, frames),
    cut: cut(element), links: (model.links ?? []).map(({ url }) => interpolated(url)),
    annotations: (data.annotations ?? []).reduce((sum, frame) => sum + frame.length, 0),
    series: series(frames, theme), axis: axis(model), boxes: model.type === 'stat' ? boxes(element) : [],
    ...(model.type === 'table' ? table(element, frames) : {}),
  };
}

// --- What Grafana does not know ---------------------------------------------------------------------
function* unknown(model, plugin) {
  const { defaults, overrides } = model.fieldConfig;
  const registered = (id) => plugin.fieldConfigRegistry.getIfExists(id) ?? plugin.fieldConfigRegistry.getIfExists(id.split('.').slice(0, 2).join('.'));
  const { custom = {}, ...standard } = defaults;
  const properties = overrides.flatMap((one) => one.properties);
  for (const id of [...Object.keys(standard), ...Object.keys(custom).map((key) => `custom.${key}`), ...properties.map((one) => one.id)]) {
    if (!registered(id)) {
      yield `option ${id}`;
    }
  }
  const units = new Set(getValueFormats().flatMap(({ submenu }) => submenu.map(({ value }) => value)));
  for (const unit of [defaults.unit, ...properties.filter(({ id }) => id === 'unit').map(({ value }) => value)]) {
    if (!units.has(unit)) {
      yield `unit ${unit}`;
    }
  }
  for (const { id } of model.transformations) {
    if (!standardTransformersRegistry.getIfExists(id)) {
      yield `transformer ${id}`;
    }
  }
}

// Names of fields that the panel speaks of, and those that there are.
function fields(model, frames) {
  const names = new Set(frames.flatMap((frame) => frame.fields.flatMap((field) => [field.name, getFieldDisplayName(field, frame, frames)])));
  const named = model.fieldConfig.overrides.filter(({ matcher }) => matcher.id === 'byName').map(({ matcher }) => matcher.options);
  const open = model.targets.some(({ legendFormat }) => legendFormat.includes('{{'));
  const spoken = [
    ...(open ? [] : named), ...(model.options.sortBy ?? []).map(({ displayName }) => displayName),
    ...model.transformations.flatMap(({ options }) => Object.keys(options.indexByName ?? {})),
  ];
  return { spoken, fields: frames.some(({ length }) => length) ? [...names] : [] };
}

// --- What is seen -----------------------------------------------------------------------------------
// Texts that something which hides what overflows it cuts off on the left or on the right.
function cut(element, inside = element) {
  const found = [];
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    const text = range.getBoundingClientRect();
    for (let up = walker.currentNode.parentElement; up !== inside && text.width; up = up.parentElement) {
      const hides = getComputedStyle(up).overflowX !== 'visible';
      const box = up.getBoundingClientRect();
      if (hides && box.width >= SEEN && (text.left < box.left - SLACK || text.right > box.right + SLACK)) {
        found.push(walker.currentNode.data);
        break;
      }
    }
  }
  return found;
}

// Where each text below the title stands.
function boxes(element) {
  const found = [];
  const walker = document.createTreeWalker(element.querySelector('section > div:last-child') ?? element, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    const { left, right, top, bottom } = range.getBoundingClientRect();
    found.push({ text: walker.currentNode.data, left, right, top, bottom });
  }
  return found;
}

function series(frames, theme) {
  const background = theme.colors.background.primary;
  return frames.flatMap((frame) => frame.fields.filter(({ type }) => type === FieldType.number).map((field) => {
    const values = field.values.filter((value) => typeof value === 'number');
    const { mode, fixedColor } = field.config.color ?? {};
    const colour = mode === FieldColorModeId.Fixed ? theme.visualization.getColorByName(fixedColor) : field.display?.(values.at(-1)).color;
    return {
      name: getFieldDisplayName(field, frame, frames), colour, fixed: mode === FieldColorModeId.Fixed,
      contrast: colour === 'transparent' ? null : colorManipulator.getContrastRatio(colour, background),
      max: Math.max(...values), last: values.at(-1), text: field.display ? text(field.display(values.at(-1))) : '',
      unit: field.config.unit, values: values.length, stacked: field.config.custom?.stacking?.mode === 'normal',
    };
  }));
}

const text = ({ prefix = '', text: middle, suffix = '' }) => `${prefix}${middle}${suffix}`;

// The value axis of a graph, and which share of the points of each line lie on its upper end.
function axis({ title }) {
  const plot = window.plots?.[title];
  const name = plot && Object.keys(plot.scales).find((key) => key !== 'x' && plot.scales[key].max != null);
  if (!name) {
    return null;
  }
  const { min, max } = plot.scales[name];
  const onFrame = plot.series.slice(1).filter((one) => one.show && one.width > 0).map((one, at) => {
    const values = plot.data[at + 1].filter((value) => value != null);
    return values.filter((value) => value > max - (max - min) / 200).length / values.length;
  });
  return { min, max, onFrame: Math.max(0, ...onFrame) };
}

function table(element, frames) {
  const grid = element.querySelector('[role=grid]');
  const columns = [...element.querySelectorAll('[role=columnheader]')].map((head) => head.innerText.trim());
  const heads = [...element.querySelectorAll('[role=columnheader]')].flatMap((head) => cut(head, element));
  const links = {};
  for (const frame of frames) {
    for (const field of frame.fields) {
      const found = frame.fields.length && field.config.links?.length ? field.getLinks({ valueRowIndex: 0 }) : [];
      if (found.length) {
        links[field.state?.displayName ?? field.name] = found.map(({ href }) => href);
      }
    }
  }
  const painted = [...element.querySelectorAll('[role=gridcell]')]
    .filter((cell) => !UNPAINTED.has(getComputedStyle(cell).backgroundColor)).map((cell) => cell.innerText);
  const sorted = [...element.querySelectorAll('[role=columnheader][aria-sort]')].map((head) => head.innerText.trim());
  return { columns, cutHeads: heads, sorted, painted, tableLinks: links, wider: grid ? grid.scrollWidth - grid.clientWidth : 0 };
}
